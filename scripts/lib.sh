# lib.sh - what the scripts share. Sourced, never run. Leaves $root set and the shell in it.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# stale A B...: true when A is missing or older than one of the others that exist.
stale() {
  local target=$1 source
  shift
  [ -e "$target" ] || return 0
  for source in "$@"; do
    [ "$source" -nt "$target" ] && return 0
  done
  return 1
}

jobs() {
  nproc 2>/dev/null || echo 2
}

# One build at a time makes configure; several builds of one checkout may run side by side.
make_configure() {
  mkdir -p build-aux
  exec 9>build-aux/.lock
  flock 9
  if stale configure configure.ac || [ ! -e config.h.in ] || [ ! -e Makefile.in ]; then
    autoreconf --force --install --warnings=none >build-aux/autoreconf.log 2>&1 ||
      { cat build-aux/autoreconf.log >&2; die "autoreconf failed"; }
    touch configure Makefile.in config.h.in
  elif stale Makefile.in Makefile.am; then
    # make would do the same, but two builds at once might do it both; config.status then makes each Makefile anew.
    automake --warnings=none Makefile
    touch Makefile.in
  fi
  exec 9>&-
}

# build_in DIR TARGETS -- CONFIGURE_ARGS: an incremental build out of the source tree.
build_in() {
  local dir=$1 target targets=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    targets+=("$1")
    shift
  done
  [ $# -gt 0 ] && shift
  make_configure
  mkdir -p "$dir"
  # Configure again when the script or the arguments have changed, or the unit tests' library has come.
  printf '%s\n' "$@" "check.h: $(test -e /usr/include/check.h && echo yes)" >"$dir/.arguments.new"
  if stale "$dir/config.status" configure || ! cmp -s "$dir/.arguments.new" "$dir/.arguments"; then
    echo "configuring $dir"
    (cd "$dir" && "$root/configure" --quiet "$@") >"$dir/configure.log" 2>&1 ||
      { tail -n 5 "$dir/configure.log" >&2; die "configure failed: $dir/configure.log, $dir/config.log"; }
    mv "$dir/.arguments.new" "$dir/.arguments"
  fi
  rm -f "$dir/.arguments.new"
  # One after the other: "all" and "check" at once would compile the same object twice at the same time.
  for target in "${targets[@]}"; do
    make -C "$dir" --no-print-directory -j"$(jobs)" "$target" || return
  done
}

# install_packages NAME...: Debian packages, only when one is missing. Other scripts use it for packages of their own.
install_packages() {
  local package missing=() as_root=()
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "missing, and this is no Debian: ${missing[*]}"
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "missing; as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  echo "installing ${missing[*]}"
  "${as_root[@]}" apt-get -qq -o DPkg::Lock::Timeout=300 update </dev/null
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends \
    -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 install "${missing[@]}" </dev/null >/dev/null
}

# make_venv: .venv with what tests/requirements.txt pins. Made again when that file or the interpreter has changed.
make_venv() {
  local python stamp
  # Debian's own python3 first: a shim in front of it may change from one shell to the next.
  for python in /usr/bin/python3 "$(command -v python3 || true)"; do
    [ -x "$python" ] && "$python" -c 'import ensurepip, venv' 2>/dev/null && break
    python=
  done
  [ -n "$python" ] || die "python3 with venv is missing. On Debian: apt-get install python3-venv"
  stamp="$("$python" -c 'import sys; print(sys.version)') $(sha256sum tests/requirements.txt)"
  mkdir -p build-aux
  exec 8>build-aux/.venv-lock
  flock 8
  if [ "$(cat .venv/stamp 2>/dev/null)" != "$stamp" ] || ! .venv/bin/python -c '' 2>/dev/null; then
    echo "making .venv"
    rm -rf .venv
    "$python" -m venv .venv
    .venv/bin/python -m pip --quiet --disable-pip-version-check install --no-input -r tests/requirements.txt
    echo "$stamp" >.venv/stamp
  fi
  exec 8>&-
}
