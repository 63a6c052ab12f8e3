"""Directories of models as transformers publishes them, small and with random weights."""


def save_random(model, directory, spread):
    """Give a torch model random parameters, those of norms around 1, and save it; returns it."""
    import torch

    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.normal_(0.0, spread)
            if ("norm" in key.lower() or ".ln_" in key) and key.endswith("weight"):
                parameter.add_(1.0)
    model.save_pretrained(directory)
    return model
