"""Compiled programs: found again by the next process, and never a torn one."""

import jax
import jax.numpy as jnp
import pytest
from jax._src import monitoring

from firth.training.compile_cache import Compiled, keep_compiled


@pytest.fixture
def hits():
    """How many programs came from the cache, counted from now on; all are kept."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, (None, 0), strict=True):
        jax.config.update(name, value)
    events = []

    def listen(name, **_):
        if name == "/jax/compilation_cache/cache_hits":
            events.append(name)

    monitoring.register_event_listener(listen)
    yield events
    monitoring.unregister_event_listener(listen)
    for name, value in before.items():
        jax.config.update(name, value)


def compile_in(workdir, checksums=True):
    """A run that compiles one program."""
    with keep_compiled(workdir) as compiled:
        jax.clear_caches()
        result = jax.jit(lambda x: jnp.sin(x) * 3 + 1)(jnp.ones(3))
        if checksums:
            compiled.write_checksums()
    assert jax.config.jax_compilation_cache_dir is None
    return result


def kept(workdir):
    return sorted((workdir / "compiled").glob("*-cache"))


def test_a_restart_does_not_compile_again(tmp_path, hits):
    first = compile_in(tmp_path)
    assert kept(tmp_path) and not hits
    assert (compile_in(tmp_path) == first).all()
    assert hits


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "checksums", "no checksums"])
def test_a_torn_file_is_compiled_anew_and_replaced(tmp_path, hits, harm):
    compile_in(tmp_path)
    whole = {path: path.read_bytes() for path in kept(tmp_path)}
    for path, data in whole.items():
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        path.write_bytes({"flip": flipped, "cut": data[:middle], "empty": b""}.get(harm, data))
    checksums = tmp_path / "compiled" / "seal.json"
    if harm == "checksums":
        checksums.write_text(checksums.read_text()[:-9])
    elif harm == "no checksums":  # killed after writing a program, before its checksum
        checksums.unlink()
    compile_in(tmp_path)
    assert not hits
    compile_in(tmp_path)
    assert hits
    Compiled(tmp_path).clean()
    assert kept(tmp_path) == sorted(whole)


def test_what_is_set_by_the_user_stays(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    try:
        with keep_compiled(tmp_path / "work") as compiled:
            assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
            compiled.write_checksums()
        assert not (tmp_path / "work").exists()
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
