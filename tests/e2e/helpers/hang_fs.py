"""A FUSE file system that hangs. Debian's python3 and python3-fusepy run it: hang_fs.py MOUNT_POINT

    fine        a small file
    large       64 MiB that are made up as they are read (large_byte)
    open        hangs when it is opened
    read        hangs when it is read
    dir/stat    hangs when it is looked at; it has a directory of its own, since the kernel holds that one up with it
    write       can be made and opened; hangs when it is written
    quota/      a directory where nothing can be written: EDQUOT; it has a file "f"
    hung/       a directory that hangs when it is listed

It hangs until it is killed: then the kernel ends every request with an error.
"""

import errno
import stat
import sys
import threading
import time

LARGE = 64 << 20
FINE = b"fine\n"


def large_byte(offset):
    return (offset * 7 + (offset >> 16)) & 0xFF


def large_bytes(offset, size):
    size = max(0, min(size, LARGE - offset))
    return bytes(large_byte(i) for i in range(offset, offset + size))


def main(mount_point):
    import fusepy

    never = threading.Event()

    class HangFs(fusepy.Operations):
        files = {"/fine": len(FINE), "/large": LARGE, "/open": 10, "/read": 10, "/write": 0, "/quota/f": 5}
        blocks = {}

        def getattr(self, path, fh=None):
            if path == "/dir/stat":
                never.wait()
            if path in ("/", "/hung", "/dir", "/quota"):
                return {"st_mode": stat.S_IFDIR | 0o777, "st_nlink": 2, "st_size": 0}
            if path in self.files:
                return {
                    "st_mode": stat.S_IFREG | 0o666,
                    "st_nlink": 1,
                    "st_size": self.files[path],
                    "st_mtime": time.time(),
                }
            raise fusepy.FuseOSError(errno.ENOENT)

        def readdir(self, path, fh):
            if path == "/hung":
                never.wait()
            inside = [name.removeprefix(path).strip("/") for name in self.files if name.startswith(path)]
            return [".", "..", *(name for name in inside if "/" not in name), *(["dir", "hung"] if path == "/" else [])]

        def open(self, path, flags):
            if path == "/open":
                never.wait()
            return 1

        def create(self, path, mode, fi=None):
            self.files[path] = 0
            return 1

        def read(self, path, size, offset, fh):
            if path == "/read":
                never.wait()
            if path == "/large":
                return self.large(offset, size)
            return FINE[offset : offset + size] if path in ("/fine", "/quota/f") else b""

        def large(self, offset, size):
            """Made once for each place: Python is slow."""
            if (offset, size) not in self.blocks:
                self.blocks[offset, size] = large_bytes(offset, size)
            return self.blocks[offset, size]

        def write(self, path, data, offset, fh):
            if path.startswith("/quota/"):
                raise fusepy.FuseOSError(errno.EDQUOT)
            never.wait()
            return len(data)

        def unlink(self, path):
            del self.files[path]

        def truncate(self, path, length, fh=None):
            return 0

    fusepy.FUSE(HangFs(), mount_point, foreground=True, nothreads=False, allow_other=True)


if __name__ == "__main__":
    main(sys.argv[1])
