"""Generate tokens after prompts: one prefill reads the prompts, each decode step adds a token.

B rows, P the prompts' padded length, T tokens of a block, C capacity of the cache, D hidden size,
V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from firth.inference.sampling import choose, likeliest
from firth.models.model import bound, is_stateful

SHORTEST = 16  # prompts are padded to a power of two, at least this one, so that few shapes compile
STEP = 64  # the cache's room for new tokens is a multiple of this
# A CPU begins with room for this many new tokens of all rows together, and doubles it as the text
# grows, since attention reads all slots of the cache, at the memory's speed. Every room compiles a
# step of its own. For few rows that takes longer than the reading that it would save. GPUs and TPUs
# compile for longer and read faster: they make the whole room at once.
FIRST = 2048


def blocks(encoder, prompts, numbers, max_tokens, seed, settings, size: int):
    """Generator of tokens int32 [B, T], T at most `size`; send it which rows continue, bool [B].

    Before the first send it prefills the cache and yields None. `numbers` are the row and the
    sample that key each prompt's draws. `settings` are temperature, top_k, top_p and greedy.

    The first P slots of the cache hold the prompts, padded on the right. The slots after them hold
    the new tokens, the same slot for all rows. Each row has its own mask and positions. On a CPU
    the room for new tokens grows with them, see FIRST. The cache of a recurrent network is its
    state.
    """
    count, most = len(prompts), max(map(len, prompts))
    P = min(max(SHORTEST, 1 << (most - 1).bit_length()), encoder.max_length)
    rows = 1 << (count - 1).bit_length()
    tokens_BP, lengths_B = np.zeros((rows, P), np.int32), np.ones(rows, np.int32)
    for row, prompt in enumerate(prompts):
        tokens_BP[row, : len(prompt)], lengths_B[row] = prompt, len(prompt)
    numbers_B2 = np.zeros((rows, 2), np.uint32)
    numbers_B2[:count] = numbers
    tokenizer, spec = encoder.tokenizer, encoder.saved.spec
    listed_V = np.zeros(spec["vocab_size"], bool)
    listed_V[: tokenizer.vocab_size] = [token != "" for token in tokenizer.vocab]  # "" is a hole
    fixed = dict(
        lengths=lengths_B,
        keys=_row_keys(jax.random.key(seed), numbers_B2),
        listed=listed_V,
        end=np.int32(-1 if tokenizer.end_id is None else tokenizer.end_id),
        slot=np.int32(P),
    )
    draw = {} if settings["greedy"] else dict(temperature=np.float32(settings["temperature"]))
    if settings["top_k"]:
        draw["top_k"] = np.float32(settings["top_k"])
    if settings["top_p"] < 1:
        draw["top_p"] = np.float32(settings["top_p"])
    room = whole = -(-max_tokens // STEP) * STEP
    if jax.default_backend() == "cpu" and not is_stateful(encoder.model.encoder.config):
        room = min(FIRST // rows, whole)
    state = _prefill(encoder.model, encoder.params, tokens_BP, lengths_B, P + room)
    tokens_BT, generated = None, 0
    while True:
        open_B = np.zeros(rows, bool)
        open_B[:count] = yield tokens_BT
        steps = min(size, max_tokens - generated)
        while generated + steps > room:
            room = min(2 * room, whole)
            hidden_BD, cache = state
            state = hidden_BD, _widened(cache, P + room)
        out_BT, state = _decode_steps(
            encoder.model, encoder.params, state, fixed, draw, open_B, generated, steps, size=size
        )
        generated += steps
        tokens_BT = np.asarray(out_BT)[:count, :steps]


@jax.jit
def _row_keys(key, numbers_B2):
    return jax.vmap(lambda pair: jax.random.fold_in(jax.random.fold_in(key, pair[0]), pair[1]))(
        numbers_B2
    )


@functools.partial(jax.jit, static_argnames=("model", "capacity"))
def _prefill(model, params, tokens_BP, lengths_B, capacity):
    """(last hidden state [B, D] of each prompt, cache with room for `capacity` tokens)."""
    B, P = tokens_BP.shape

    def prefill(model):
        body, places_P = model.encoder, jnp.arange(P)
        if is_stateful(body.config):
            out = body(tokens_BP, None, places_P < lengths_B[:, None])
            return out.last, out.memory
        visible = jnp.broadcast_to(places_P <= places_P[:, None], (B, P, P))
        positions = jnp.broadcast_to(places_P, (B, P))
        last_BPD, cache = body.extend(tokens_BP, positions, visible, body.empty_cache(B, P), 0)
        return last_BPD, _widened(cache, capacity)

    last_BPD, cache = bound(model, prefill)(params)
    return last_BPD[jnp.arange(B), lengths_B - 1], cache


@functools.partial(jax.jit, static_argnames="capacity")
def _widened(cache, capacity):
    """The cache with empty slots after its own, `capacity` of them in all."""

    def widen(array):
        more = capacity - array.shape[-2]
        return jnp.pad(array, [(0, 0)] * (array.ndim - 2) + [(0, more), (0, 0)])

    return jax.tree.map(widen, cache)


@functools.partial(jax.jit, static_argnames=("model", "size"), donate_argnames="state")
def _decode_steps(model, params, state, fixed, draw, open_B, generated, steps, *, size):
    """Run at most `steps` decode steps; returns tokens int32 [B, size] and the new state.

    The steps stop once no row is open. The end-of-text token closes a row; the tokens after it mean
    nothing.
    """

    def step(carry):
        i, out_BT, open_B, hidden_BD, cache = carry
        count = generated + i

        def next_logits(model):
            return model.lm(hidden_BD[:, None])[:, 0, : len(fixed["listed"])]

        logits_BV = bound(model, next_logits)(params)
        logits_BV = jnp.where(fixed["listed"], logits_BV, -jnp.inf)
        if draw:
            keys_B = jax.vmap(jax.random.fold_in, in_axes=(0, None))(fixed["keys"], count)
            token_B = choose(logits_BV, keys_B, **draw)
        else:
            token_B = likeliest(logits_BV)
        out_BT = out_BT.at[:, i].set(token_B)
        open_B &= token_B != fixed["end"]

        def extend(model):
            if is_stateful(model.encoder.config):
                out = model.encoder(token_B[:, None], memory=cache)
                return out.last, out.memory
            slots_C = jnp.arange(jax.tree.leaves(cache)[0].shape[-2])
            prompt_BC = slots_C < fixed["lengths"][:, None]
            slot = fixed["slot"] + count
            visible_BC = prompt_BC | ((slots_C >= fixed["slot"]) & (slots_C <= slot))
            positions_B1 = (fixed["lengths"] + count)[:, None]
            return model.encoder.extend(
                token_B[:, None], positions_B1, visible_BC[:, None], cache, slot
            )

        last_B1D, new_cache = bound(model, extend)(params)
        return i + 1, out_BT, open_B, last_B1D[:, 0], new_cache

    def unfinished(carry):
        return (carry[0] < steps) & carry[2].any()

    out_BT = jnp.zeros((len(open_B), size), jnp.int32)
    _, out_BT, _, *state = jax.lax.while_loop(unfinished, step, (0, out_BT, open_B, *state))
    return out_BT, tuple(state)
