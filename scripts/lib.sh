# lib.sh - what the scripts share. Sourced, never run. Leaves $root set and the shell in it.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# newer A B...: true when A is missing or older than one of the others that exist.
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
  exec 9>"$root/.autoreconf.lock"
  flock 9
  if stale configure configure.ac || stale Makefile.in Makefile.am configure.ac || [ ! -e config.h.in ]; then
    mkdir -p build-aux
    autoreconf --force --install --warnings=none >build-aux/autoreconf.log 2>&1 ||
      { cat build-aux/autoreconf.log >&2; die "autoreconf failed"; }
    touch configure Makefile.in config.h.in
  fi
  exec 9>&-
}

# build_in DIR TARGETS -- CONFIGURE_ARGS: an incremental build out of the source tree.
build_in() {
  local dir=$1 targets=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    targets+=("$1")
    shift
  done
  [ $# -gt 0 ] && shift
  make_configure
  mkdir -p "$dir"
  # Configure again when the script or the arguments have changed.
  printf '%s\n' "$@" >"$dir/.arguments.new"
  if stale "$dir/config.status" configure || ! cmp -s "$dir/.arguments.new" "$dir/.arguments"; then
    echo "configuring $dir"
    (cd "$dir" && "$root/configure" --quiet "$@") >"$dir/configure.log" 2>&1 ||
      { tail -n 5 "$dir/configure.log" >&2; die "configure failed: $dir/configure.log, $dir/config.log"; }
    mv "$dir/.arguments.new" "$dir/.arguments"
  fi
  rm -f "$dir/.arguments.new"
  make -C "$dir" --no-print-directory -j"$(jobs)" "${targets[@]}"
}
