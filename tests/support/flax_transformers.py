"""Train steps of the Flax models of the library transformers, from small configs, with adamw.

The newest version that has them is 4.57.6, no dependency of this project. Its T5 needs an argument
that JAX has removed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

WORDS, LENGTH, BATCH, PIXELS, CLASSES = 512, 32, 4, 32, 10
_SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": LENGTH + 8,
}
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_IMAGE = {"image_size": PIXELS, "patch_size": 8, "num_labels": CLASSES}
_SIDES = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 128))
}

# model -> config's class, model's class, fields of the config
MODELS = {
    "bert": ("BertConfig", "FlaxBertForMaskedLM", _SMALL),
    "roberta": ("RobertaConfig", "FlaxRobertaForMaskedLM", _SMALL),
    "gpt2": (
        "GPT2Config",
        "FlaxGPT2LMHeadModel",
        {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4},
    ),
    "gpt-neo": (
        "GPTNeoConfig",
        "FlaxGPTNeoForCausalLM",
        {
            "vocab_size": WORDS,
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": LENGTH,
            "window_size": 8,
        },
    ),
    "llama": ("LlamaConfig", "FlaxLlamaForCausalLM", _SMALL),
    "vit": ("ViTConfig", "FlaxViTForImageClassification", _SMALL | _IMAGE),
    "bart": (
        "BartConfig",
        "FlaxBartForConditionalGeneration",
        {"vocab_size": WORDS, "d_model": 64, "max_position_embeddings": LENGTH, **_SIDES},
    ),
    "resnet": (
        "ResNetConfig",
        "FlaxResNetForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "num_labels": CLASSES},
    ),
    "opt": (
        "OPTConfig",
        "FlaxOPTForCausalLM",
        {"vocab_size": WORDS, "hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2}
        | {"num_attention_heads": 4, "word_embed_proj_dim": 64}
        | {"max_position_embeddings": LENGTH, **_TOKENS},
    ),
}


def transformer(name, seed=0):
    """The step of a model, its state (params, optimizer's state, key) and a batch."""
    import transformers

    config_class, model_class, fields = MODELS[name]
    config = getattr(transformers, config_class)(**fields)
    images = "ImageClassification" in model_class
    shape = {"input_shape": (1, PIXELS, PIXELS, 3)} if images else {}
    model = getattr(transformers, model_class)(config, seed=seed, **shape)
    optimizer = optax.adamw(1e-3)
    generator = np.random.RandomState(seed)

    def loss(params, batch, key):
        inputs, labels = batch
        options = {"params": params}
        options |= {"deterministic": False} if name == "opt" else {"train": name != "resnet"}
        options |= {} if name == "resnet" else {"dropout_rng": key}
        if name == "bart":
            options["decoder_input_ids"] = labels
        logits = model(inputs, **options).logits
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(state, batch):
        params, moments, key = state
        key, now = jax.random.split(key)
        value, gradient = jax.value_and_grad(loss)(params, batch, now)
        updates, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments, key), value

    if images:
        inputs = generator.rand(BATCH, 3, PIXELS, PIXELS).astype(np.float32)
        labels = generator.randint(0, CLASSES, BATCH)
    else:
        inputs, labels = generator.randint(3, WORDS, (2, BATCH, LENGTH))
    state = (model.params, optimizer.init(model.params), jax.random.key(seed))
    return step, state, (jnp.asarray(inputs), jnp.asarray(labels))
