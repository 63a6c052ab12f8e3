"""Every objective with every body: it builds, or is refused with the reason and what to use."""

import jax
import numpy as np
import pytest

from firth import recipe
from firth.errors import FirthError
from firth.models import FAMILIES
from firth.objectives import OBJECTIVES
from firth.run.building.objective import RECIPES
from firth.run.outline import outline

CAUSAL = ("transformer_xl", "gpt", "gpt2", "lstm", "rnn", "awd_lstm", "rhn", "feedforward")
CAUSAL += ("char_cnn_lstm",)
TINY = {"bert": "bert.py:tiny,view=packed,length=32", "xlnet": "xlnet.py:tiny,length=32"}
HOMES = {"squad": "squad.py:v1,init=x"}
TINY |= {"electra": "electra.py:tiny,sharing=embeddings"}


def tiny(family: str):
    return recipe.read_recipe(TINY.get(family, f"{family}.py:tiny"))


def reason(family: str, objective: str) -> str:
    """Why this body cannot have this objective; "" if it can."""
    if family == "elmo":
        reads = "cannot train model.family='elmo', which reads the characters .*name=bilm"
        return "" if objective == "bilm" else reads
    if objective == "bilm":
        return f"trains a model of two directions, model.family='elmo', not '{family}'"
    if objective == "finetune":
        return "has no task; use finetune.py"
    if objective == "multitask":
        return r"learns several tasks; use finetune\.py with --config\.data\.tasks"
    if objective == "tag":
        return "has no such task; use tagger.py"
    if objective == "answer":
        return "has no such task; use squad.py"
    if family in CAUSAL:
        sees = f"cannot train model.family='{family}', which sees only the tokens before each"
        return "" if objective == "clm" else f"{sees}.*use objective.name=clm"
    if objective == "clm":
        return f"cannot train model.family='{family}', which sees both sides .* use (mlm|plm)"
    if family == "xlnet":
        return "embeddings of another width .* use mlm" if objective == "rtd" else ""
    return "only xlnet has; use mlm or rtd" if objective == "plm" else ""


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "tagger"])
def test_a_pair_builds_or_says_why_not(family, objective):
    """The body of one recipe, the objective and the rows of another."""
    config = tiny(family)
    if config.objective.name != objective:
        home = RECIPES[objective].removesuffix(".py")
        labelled = home in ("finetune", "tagger", "squad")
        shown = recipe.read_recipe(HOMES.get(home, f"{home}.py:init=x")) if labelled else tiny(home)
        with config.unlocked():
            config.objective = shown.objective
            config.objective.name = objective  # finetune.py shows those of one task and of several
            config.data = config.data if labelled else shown.data
            config.data.length = 32
    if expected := reason(family, objective):
        with pytest.raises(FirthError, match=expected):
            outline(config)
        return
    parts = outline(config)
    tokens = jax.ShapeDtypeStruct((1, 8), np.int32)
    params = jax.eval_shape(parts.model.init, jax.random.key(0), tokens)["params"]
    heads = {head for head in parts.objective.heads if f"{head}_head" in params or head in params}
    assert "encoder" in params and (heads or objective == "clm")


@pytest.mark.parametrize("name", ["gpt2.py:tiny", "bert.py:tiny", "xlnet.py:tiny"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_name_alone_on_the_command_line(name, objective):
    """With the fields of another objective it builds too, or is refused in the same words."""
    config = recipe.read_recipe(name, [f"--config.objective.name={objective}"])
    try:
        outline(config)
    except FirthError as error:
        assert "__init__" not in str(error) and ("use " in str(error) or "as in" in str(error))
