"""PyTorch's side of a training step, by family: the same body, objective and number of rows.

`step_time/bench.py` has the masked language models and ELECTRA, `step_time/xlnet.py` XLNet. Here
are GPT-2's causal loss and DistilBERT's distillation from a teacher that runs along.
"""

from bench import MASK, inputs, torch_model, torch_side, torch_step
from xlnet import torch_side as xlnet_side


def build(cell: dict, config, *, attention: str, **options):
    """A function that runs one step of a cell's recipe; `config` is what Firth's side trains.

    `attention` is transformers' way of computing it, options are those of `bench.torch_step`.
    """
    family, _, size = cell["recipe"].partition(".py:")
    vocabulary = config.model.vocab_size
    if family == "xlnet":  # transformers computes its attention in one way
        return xlnet_side(size, cell["rows"], cell["length"], vocabulary, **options)
    if family in ("gpt2", "distilbert"):
        losses, parameters = (causal if family == "gpt2" else distillation)(
            cell, config, attention, options["device"]
        )
        return torch_step(losses, parameters, config, **options)
    return torch_side(
        *(cell["recipe"], cell["rows"], cell["length"], vocabulary),
        attention=attention,
        attention_dropout=cell["rate"],
        **options,
    )


def causal(cell: dict, config, attention: str, device: str):
    """(loss function, parameters) of GPT-2: every token from those before it."""
    import torch

    model = torch_model(dict(config.model), ("lm",), attention).to(device)
    tokens = torch.from_numpy(inputs(cell["rows"], cell["length"], config.model.vocab_size))
    tokens = tokens.long().to(device)
    return lambda: model(input_ids=tokens, labels=tokens).loss, list(model.parameters())


def distillation(cell: dict, config, attention: str, device: str):
    """(loss function, parameters) of DistilBERT: soft targets, masked LM and cosine.

    As in the paper's code (Sanh et al. 2019), with the weights of the recipe. Soft targets and
    cosine are over all tokens. The teacher, the one that `firth plan` assumes, runs in evaluation.
    """
    import torch
    from torch.nn import functional

    from firth.run.outline import stand_in_teacher

    fields, spec = config.objective, dict(config.model)
    student = torch_model(spec, ("mlm",), attention).to(device)
    teacher = torch_model(stand_in_teacher(spec).spec, ("mlm",), attention).to(device).eval()
    rows, length, vocabulary = cell["rows"], cell["length"], spec["vocab_size"]
    tokens = torch.from_numpy(inputs(rows, length, vocabulary)).long()
    count = max(round(fields.rate * length), 1)
    chosen = torch.stack([torch.randperm(length - 2)[:count] + 1 for _ in range(rows)])
    labels = torch.full_like(tokens, -100).scatter_(1, chosen, tokens.gather(1, chosen))
    masked = torch.where(labels >= 0, MASK, tokens).to(device)
    labels, T = labels.to(device), fields.temperature

    def losses():
        mine = student(input_ids=masked, labels=labels, output_hidden_states=True)
        with torch.no_grad():
            taught = teacher(input_ids=masked, output_hidden_states=True)
        mine_NV, taught_NV = (x.logits.float().view(-1, vocabulary) / T for x in (mine, taught))
        soft = functional.kl_div(
            mine_NV.log_softmax(-1), taught_NV.softmax(-1), reduction="batchmean"
        )
        mine_ND, taught_ND = (x.hidden_states[-1].flatten(0, 1).float() for x in (mine, taught))
        cosine = (1 - functional.cosine_similarity(mine_ND, taught_ND)).mean()
        return fields.soft * T**2 * soft + fields.hard * mine.loss + fields.cosine * cosine

    return losses, list(student.parameters())
