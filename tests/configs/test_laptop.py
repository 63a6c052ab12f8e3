"""tiny, mini and small: what they need of memory and time, and what leaves them as they are."""

import json
import math

import pytest
from helpers.cases import nightly
from helpers.papers import REPOSITORY

from firth import recipe
from firth.configs import laptop
from firth.errors import FirthError
from firth.planning import memory
from firth.planning.flops import update_flops
from firth.planning.hardware import CHIPS, GIB
from firth.run.outline import outline

VOCABULARY = 8192
MINUTES = {"tiny": 20, "mini": 120, "small": 60}
SPEEDUP = 1.5  # of two cores over one; the quick start measured 1.6
MFU = 0.3  # of a V100 in float32
SIZES = [(family, size) for family in laptop.TABLE for size in laptop.TABLE[family]]
RESULTS = REPOSITORY / "experiments" / "small_recipes" / "results.jsonl"
MEASURED = [json.loads(line) for line in RESULTS.read_text().splitlines()]


def name_of(family: str, size: str, *arguments: str) -> str:
    """The recipe with the settings for a laptop."""
    own = ("paper=False",) if (family, size) == ("electra", "small") else ()
    return f"{family}.py:{','.join((size, *own, *arguments))}"


def outlined(name: str, *changes: str):
    """The recipe's outline, its layers scanned, which are traced once; the arrays are the same."""
    scanned = ["--config.model.scan=True", f"--config.model.vocab_size={VOCABULARY}"]
    return outline(recipe.read_recipe(name, [*scanned, *changes]))


def run_bytes(out) -> int:
    """Memory of a run by the planner."""
    program = memory.laid_out(out, 1)
    kept = memory.activation_bytes(out, program.state.params, out.config.batch_size)
    return sum(memory.device_bytes(out, program).values()) + kept


def step_seconds(family: str, size: str) -> float:
    """Seconds of a step: one core's for as many tokens, as two take it; on a GPU as planned."""
    if size == "small":
        out = outlined(name_of(family, size))
        return sum(update_flops(out).values()) / (CHIPS["v100"].fp32_flops * MFU)
    tokens = laptop.find(family, size).batch_size * laptop.find(family, size).length
    of = [row for row in MEASURED if (row["family"], row["size"]) == (family, size)]
    timed = [row for row in of if "core_ms" in row]
    alike = [row for row in timed if math.prod(row["settings"]["shape"]) == tokens]
    return alike[-1]["core_ms"] / 1e3 / SPEEDUP


def test_every_family_has_all_three():
    families = {name.removesuffix(".py") for name in recipe.shipped()}
    others = {"adapt", "finetune", "maxent", "quickstart", "squad", "tagger", "ulmfit"}
    others |= set(recipe.OWN_RUNS)
    papers = {
        "char_cnn_lstm",
        "char_lstm",
        "elmo",
        "feedforward",
        "lstm",
        "rnn",
        "awd_lstm",
        "melis",
        "rhn",
    }  # whose own sizes a laptop trains
    assert set(laptop.TABLE) == families - others - papers
    assert all(set(sizes) == set(MINUTES) for sizes in laptop.TABLE.values())


@pytest.mark.parametrize(("family", "size"), SIZES)
def test_a_run_ends_in_time_and_soon_prints_a_loss(family, size):
    config = recipe.read_recipe(name_of(family, size))
    seconds = step_seconds(family, size)
    minutes = config.steps * seconds / 60
    assert minutes <= MINUTES[size]
    assert laptop.COSTS[family][size][0] == pytest.approx(minutes, abs=0.51)
    assert config.log_every * seconds < 10


@pytest.mark.parametrize("family", laptop.TABLE)
def test_the_largest_fits_a_laptop(family):
    needed = run_bytes(outlined(name_of(family, "small"))) / GIB
    assert needed < 8
    assert laptop.COSTS[family]["small"][1] == pytest.approx(needed, abs=0.051)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "size"),
    [nightly(*pair) if pair[1] == "tiny" else pair for pair in SIZES if pair[1] != "small"],
)
def test_the_others_do_too(family, size):
    needed = run_bytes(outlined(name_of(family, size))) / GIB
    assert laptop.COSTS[family][size][1] == pytest.approx(needed, abs=0.051)


@pytest.mark.parametrize(
    "command",
    [
        "modernbert.py:small,objective=rtd",
        "electra.py:small,paper=False,variant=all_tokens",
        "roberta.py:small --config.objective.name=rtd --config.objective.mask_specials=False",
    ],
)
def test_other_objectives_that_the_pages_name_fit_too(command):
    name, *changes = command.split()
    assert run_bytes(outlined(name, *changes)) < 8 * GIB


@pytest.mark.parametrize("family", laptop.TABLE)
def test_a_length_that_is_given_wins(family):
    usual, given = (
        recipe.read_recipe(name_of(family, "tiny", *more)) for more in ((), ("length=24",))
    )
    assert usual.data.length == laptop.find(family, "tiny").length != 24 == given.data.length
    slots = [c.objective.get("max_predictions", 0) for c in (usual, given)]
    assert slots[0] > slots[1] or slots == [0, 0]
    assert usual.steps == given.steps


@pytest.mark.parametrize(
    ("name", "steps"),
    [("bert.py:2x128", 1_000_000), ("electra.py:small", 1_000_000), ("gpt2.py:base", 300_000)],
)
def test_what_is_published_stays_as_it_is(name, steps):
    config = recipe.read_recipe(name)
    assert config.steps == steps and config.model.dropout == 0.1
    assert config.checkpoint.every == 100_000


def test_electras_small_is_the_papers_unless_asked():
    papers, own = (recipe.read_recipe(f"electra.py:small{more}") for more in ("", ",paper=False"))
    assert papers.model.num_layers == own.model.num_layers == 12
    assert own.steps == laptop.find("electra", "small").steps < papers.steps
    with pytest.raises(FirthError, match=r"base has the paper's settings alone"):
        recipe.read_recipe("electra.py:base,paper=False")


def test_detecting_replaced_tokens_keeps_electras_masks():
    masked, detects = (
        recipe.read_recipe(f"modernbert.py:tiny,objective={objective}").objective
        for objective in ("mlm", "rtd")
    )
    assert masked.rate == laptop.find("modernbert", "tiny").rate
    assert (detects.rate, detects.max_predictions) == (0.15, round(0.15 * 64))


def test_the_page_of_recipes_says_what_they_take():
    page = (REPOSITORY / "docs" / "recipes.md").read_text()
    for family, sizes in laptop.COSTS.items():
        cells = [f"{minutes} min, {gib} GiB" for minutes, gib in sizes.values()]
        assert f"| `{family}.py` | {' | '.join(cells)} |" in page
