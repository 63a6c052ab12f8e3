"""Small ELMo models, and ELMo once more in torch, word by word."""

import jax.numpy as jnp
import numpy as np

from firth.models.model import create
from firth.weights.elmo.exchange import write_elmo
from helpers.quick import initial

SMALL = dict(
    family="elmo",
    vocab_size=11,
    hidden_size=10,
    cell_size=7,
    num_layers=2,
    max_characters=9,
    character_width=3,
    filter_widths=(1, 3),
    filter_counts=(4, 6),
    highways=1,
    cell_clip=0.4,  # so that both clips matter
    projection_clip=0.3,
)


def made(heads=(), **changes):
    """(model, params) of a small ELMo, its parameters random."""
    model = create(SMALL | changes, heads)
    params = initial(model, jnp.zeros((1, 4), jnp.int32), seed=1, scale=0.7)
    rng = np.random.default_rng(2)
    for direction in ("forward", "backward"):
        for layer in params["encoder"][direction].values():
            layer["bias"] = rng.normal(0, 0.5, layer["bias"].shape).astype(np.float32)
    return model, params


def write_released(folder):
    """Write a small ELMo in the released layout, 10 wide, words of 50 places; returns the folder.

    Needs h5py.
    """
    model, params = made(max_characters=50)
    params["encoder"]["words"]["embedding"][0] = 0
    config = model.encoder.config
    spec = {name: getattr(config, name) for name in config.__dataclass_fields__}
    write_elmo(folder, spec | {"family": "elmo"}, (), params)
    return folder


def in_torch(torch, config, params, rows, memory=None, *, marks=False):
    """Layers [N + 1, words, D] of each row of words' character ids, and the state after them.

    `rows` are lists of ids [words, W] whose first and last word are the marks of a sentence. These
    have layers only if `marks`.
    """
    words, results, after = params["encoder"]["words"], [], []
    tensor = lambda x: torch.tensor(np.array(x, np.float32))  # noqa: E731

    def vectors(ids):
        table = tensor(words["embedding"])
        table[0] = 0
        x = table[torch.tensor(np.array(ids))].transpose(1, 2)
        found = []
        for i in range(len(config.filters)):
            kernel = tensor(words[f"filters_{i}_kernel"]).permute(2, 1, 0)
            y = torch.nn.functional.conv1d(x, kernel, tensor(words[f"filters_{i}_bias"]))
            found.append(torch.relu(y.amax(-1)))
        x = torch.cat(found, -1)
        dense = lambda name, x: x @ tensor(words[name]["kernel"]) + tensor(words[name]["bias"])  # noqa: E731
        for i in range(config.highways):
            gate = torch.sigmoid(dense(f"highway_{i}_carry", x))
            x = gate * torch.relu(dense(f"highway_{i}_transform", x)) + (1 - gate) * x
        return dense("projection", x)

    def run(direction, x, row):
        layers, states = [], []
        for n in range(config.num_layers):
            layer = params["encoder"][direction][f"layer_{n}"]
            kernel = tensor(layer["kernel"]).flatten(1)
            bias, project = tensor(layer["bias"]).flatten(), tensor(layer["project"])
            state = [torch.zeros(config.cell_size), torch.zeros(config.width)]
            if memory:
                state = [tensor(memory[f"{direction}_{k}"][row, n]) for k in "ch"]
            c, h = state
            outputs = []
            for at in x:
                i, j, f, o = (torch.cat([at, h]) @ kernel + bias).chunk(4)
                c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)
                c = c.clamp(-config.cell_clip, config.cell_clip)
                h = (torch.sigmoid(o) * torch.tanh(c)) @ project
                h = h.clamp(-config.projection_clip, config.projection_clip)
                outputs.append(h)
            out = torch.stack(outputs)
            x = out + x if config.skip_connections and n else out
            layers.append(x)
            states.append((c.numpy(), h.numpy()))
        return torch.stack(layers), states

    for row, ids in enumerate(rows):
        x = vectors(ids)
        ahead, first = run("forward", x, row)
        behind, second = run("backward", x.flip(0), row)
        layers = torch.cat([ahead, behind.flip(1)], -1)
        layers = torch.cat([torch.cat([x, x], -1)[None], layers]).numpy()
        results.append(layers if marks else layers[:, 1:-1])
        after.append({"forward": first, "backward": second})
    return results, after
