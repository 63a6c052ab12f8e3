"""Compiled programs kept in a workdir, so that a restart need not compile them again.

JAX's own cache stores them. It writes its files in place, reads whatever it finds and never
replaces a file. So a process killed while writing would leave a torn file for good. Here a file
counts once its SHA-256 is recorded; the next start removes all other files.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from firth.distributed import job
from firth.storage.local import checksums_text, digests, read_checksums, write_text
from firth.training.remote_workdir import is_local_copy


class Compiled:
    """The compiled programs of one workdir, under `compiled/`."""

    def __init__(self, workdir: Path):
        self.folder = Path(workdir).absolute() / "compiled"
        self.checksums = self.folder / "seal.json"
        self._names: set[str] = set()

    def clean(self):
        """Remove the files without a checksum, and those that do not match theirs."""
        try:
            expected = read_checksums(self.checksums.read_bytes())
        except (OSError, ValueError):
            expected = {}
        for name, digest in digests(self.folder).items():
            if name != self.checksums.name and expected.get(name) != digest:
                (self.folder / name).unlink()

    def write_checksums(self):
        """Record the checksums of all files if any is new; call it while nothing compiles."""
        names = {path.name for path in self.folder.glob("*-cache")}
        if names != self._names and job.leads():
            files = digests(self.folder)
            files.pop(self.checksums.name, None)
            write_text(self.checksums, checksums_text(files))
            self._names = names


@contextlib.contextmanager
def keep_compiled(workdir: Path) -> Iterator[Compiled]:
    """Make JAX keep compiled programs in the workdir, and find those of the run before, in a block.

    If JAX_COMPILATION_CACHE_DIR is set, JAX keeps them there instead, without checksums.
    """
    compiled = Compiled(workdir)
    if jax.config.jax_compilation_cache_dir:
        yield compiled
        return
    if job.leads() or is_local_copy(workdir):  # the only writer of this folder
        compiled.clean()
    jax.config.update("jax_compilation_cache_dir", str(compiled.folder))
    compilation_cache.reset_cache()
    try:
        yield compiled
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()
