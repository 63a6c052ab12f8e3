"""Compiled programs kept in a workdir, so that a restart has not to compile them again.

JAX's own cache does the keeping. It writes its files in place, reads back whatever is there and
never replaces one, so a process killed while writing would leave a torn file for good. Here the
files count once they are sealed with their SHA-256; at the start, all others are removed.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from firth.distributed import job
from firth.storage.local import digests, read_seal, seal_text, write_text
from firth.training.remote_workdir import is_mirror


class Compiled:
    """The compiled programs of one workdir, under `compiled/`."""

    def __init__(self, workdir: Path):
        self.folder = Path(workdir).absolute() / "compiled"
        self.seal_path = self.folder / "seal.json"
        self._names: set[str] = set()

    def clean(self):
        """Remove what is not sealed or does not match its seal."""
        try:
            sealed = read_seal(self.seal_path.read_bytes())
        except (OSError, ValueError):
            sealed = {}
        for name, digest in digests(self.folder).items():
            if name != self.seal_path.name and sealed.get(name) != digest:
                (self.folder / name).unlink()

    def seal(self):
        """Vouch for the files that are there, if there are new ones; nothing may be compiling."""
        names = {path.name for path in self.folder.glob("*-cache")}
        if names != self._names and job.leads():
            found = digests(self.folder)
            found.pop(self.seal_path.name, None)
            write_text(self.seal_path, seal_text(found))
            self._names = names


@contextlib.contextmanager
def keep_compiled(workdir: Path) -> Iterator[Compiled]:
    """Within, JAX keeps compiled programs in the workdir, and finds those of the run before.

    Where JAX_COMPILATION_CACHE_DIR is set, programs are kept there instead, and not sealed.
    """
    compiled = Compiled(workdir)
    if jax.config.jax_compilation_cache_dir:
        yield compiled
        return
    if job.leads() or is_mirror(workdir):  # the one that writes, or it is its own
        compiled.clean()
    jax.config.update("jax_compilation_cache_dir", str(compiled.folder))
    compilation_cache.reset_cache()
    try:
        yield compiled
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()
