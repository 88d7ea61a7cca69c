"""Tiny random models of transformers, made from configurations: nothing is downloaded."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import real_models.vision  # noqa: F401  # isort: skip  (before torchvision, which transformers imports)
import numpy as np
import peft
import torch
import transformers as hf
from real_models.engines import Torch
from real_models.harness import Case, Program

ENGINE = Torch
SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {"num_key_value_heads": 1, "head_dim": 8}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
DECODER = {"decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
DECODER |= {"encoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
DECODER |= {"d_model": 16}
PIXELS = {"image_size": 8, "patch_size": 4}
SEQUENCES = np.random.default_rng(0).standard_normal((3, 6, 16))
IMAGES = np.random.default_rng(0).standard_normal((3, 3, 8, 8))
SPECTRA = np.random.default_rng(0).standard_normal((3, 8, 12))
# Other sizes of a batch sum in another order.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.1}


def embedded(model, x):
    """Return the states of a model that is given embeddings."""
    return model(inputs_embeds=x).last_hidden_state


def decoded(model, x):
    """Return the states of a decoder that reads what an encoder makes of the rows."""
    return model(inputs_embeds=x, decoder_inputs_embeds=x).last_hidden_state


def seen(model, x):
    """Return the states of a model of images."""
    return model(pixel_values=x).last_hidden_state


def heard(model, x):
    """Return the states of a model of spectra."""
    start = torch.ones(len(x), 4, dtype=torch.int64)
    return model(input_features=x, decoder_input_ids=start).last_hidden_state


class Model(NamedTuple):
    """How a model is made and called."""

    model: type
    config: type
    call: Callable = embedded
    x: np.ndarray = SEQUENCES
    sizes: dict = SIZES
    dtype: torch.dtype = torch.float64

    def made(self, attention):
        """Return the random model, in evaluation mode."""
        torch.manual_seed(0)
        config = self.config(**SIZES | self.sizes)
        config._attn_implementation = attention
        return self.model(config).to(self.dtype).eval()

    def program(self, attention, prepare=lambda model: model, call=None, tolerance=None):
        """Return the program of the model."""
        model = prepare(self.made(attention))
        return Program(
            lambda _, x: (call or self.call)(model, x.to(self.dtype)),
            self.x,
            parameters=[p for p in model.parameters() if p.requires_grad],
            tolerance=tolerance or TOLERANCES[self.dtype],
        )


MODELS = {
    "BERT": Model(hf.BertModel, hf.BertConfig),
    "RoBERTa": Model(hf.RobertaModel, hf.RobertaConfig),
    "DistilBERT": Model(
        hf.DistilBertModel,
        hf.DistilBertConfig,
        sizes={"dim": 16, "n_heads": 2, "hidden_dim": 24, "n_layers": 2},
    ),
    "Llama": Model(hf.LlamaModel, hf.LlamaConfig, sizes=GROUPED),
    "Mistral": Model(hf.MistralModel, hf.MistralConfig, sizes=GROUPED | {"sliding_window": 4}),
    "Qwen3": Model(hf.Qwen3Model, hf.Qwen3Config, sizes=GROUPED),
    "Gemma2": Model(hf.Gemma2Model, hf.Gemma2Config, sizes=GROUPED),
    "GPT-2": Model(hf.GPT2Model, hf.GPT2Config),
    "GPT-NeoX": Model(hf.GPTNeoXModel, hf.GPTNeoXConfig),
    # its grouped products of matrices take no float64
    "Mixtral": Model(
        hf.MixtralModel, hf.MixtralConfig, sizes=GROUPED | EXPERTS, dtype=torch.float32
    ),
    "Qwen3-MoE": Model(
        hf.Qwen3MoeModel,
        hf.Qwen3MoeConfig,
        sizes=GROUPED | EXPERTS | {"moe_intermediate_size": 8},
        dtype=torch.float32,
    ),
    "T5": Model(
        hf.T5Model,
        hf.T5Config,
        decoded,
        sizes={
            "d_kv": 8,
            "d_ff": 24,
            "num_layers": 2,
            "num_decoder_layers": 1,
            "d_model": 16,
            "num_heads": 2,
        },
    ),
    "BART": Model(hf.BartModel, hf.BartConfig, decoded, sizes=DECODER),
    "Whisper": Model(
        hf.WhisperModel,
        hf.WhisperConfig,
        heard,
        SPECTRA,
        sizes=DECODER | {"num_mel_bins": 8, "max_source_positions": 6, "max_target_positions": 8},
    ),
    "ViT": Model(hf.ViTModel, hf.ViTConfig, seen, IMAGES, sizes=PIXELS),
    "CLIP vision": Model(hf.CLIPVisionModel, hf.CLIPVisionConfig, seen, IMAGES, sizes=PIXELS),
}


def checkpointed(model, *, reentrant):
    """Return a model that computes its layers again in the backward pass."""
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    return without_dropout(model)


def without_dropout(model):
    """Return a model in training mode, in which nothing is dropped by chance."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "attn_dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model.train()


def hooked(model):
    """Return a model with hooks on its modules and on its parameters."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_full_backward_hook(lambda *_: None)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 1.0)
    return model


def adapted(model):
    """Return a frozen model with adapters of low rank."""
    torch.manual_seed(1)
    targets = ["q_proj", "v_proj"]
    config = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
    with warnings.catch_warnings():
        # peft 0.21 asks transformers 5.23 by its former name
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprec", FutureWarning)
        return peft.get_peft_model(model, config).double()


def lowered(model, x):
    """Return the states under autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        return embedded(model, x).float()


def padded(model, x):
    """Return the states of sequences of which one is short, and the last one empty."""
    keep = torch.ones(3, 6, dtype=torch.int64)
    keep[1, 4:] = 0
    keep[2] = 0
    return model(inputs_embeds=x, attention_mask=keep[: len(x)]).last_hidden_state


def labelled(model, x):
    """Return the loss of a model whose labels leave out the last sequence."""
    labels = torch.arange(18).reshape(3, 6)
    labels[2] = -100
    return model(inputs_embeds=x, labels=labels[: len(x)]).loss[None]


def case(name, how, build):
    """Return a case."""
    return Case("transformers", f"{name}, {how}", build)


def plain(name, attention):
    """Return the case of a model as it is."""
    return case(name, attention, lambda: MODELS[name].program(attention))


def manner(name, how, dtype=torch.float64, **options):
    """Return the case of a model in a way of training."""
    model = MODELS[name]._replace(dtype=dtype)
    return case(name, how, lambda: model.program("sdpa", **options))


def with_labels(name, model):
    """Return the case of a model whose labels leave out the last sequence."""

    def build():
        program = MODELS[name]._replace(model=model).program("sdpa", call=labelled)
        return replace(program, kept_outputs=1)

    return case(name, "labels", build)


ATTENTIONS = {"Gemma2": ("eager",)}  # it has no other
CASES = [plain(n, how) for n in MODELS for how in ATTENTIONS.get(n, ("sdpa", "eager"))]
CASES += [
    manner("BERT", "training", prepare=without_dropout),
    manner("BERT", "checkpoints", prepare=lambda m: checkpointed(m, reentrant=False)),
    manner("Llama", "checkpoints", prepare=lambda m: checkpointed(m, reentrant=False)),
    manner("Llama", "reentrant checkpoints", prepare=lambda m: checkpointed(m, reentrant=True)),
    manner("BERT", "hooks", prepare=hooked),
    manner("Llama", "peft LoRA", prepare=adapted),
    manner("BERT", "attention mask", call=padded),
    manner("Llama", "attention mask", call=padded),
    with_labels("BERT", hf.BertForMaskedLM),
    with_labels("Llama", hf.LlamaForCausalLM),
    *(manner(name, "float32", torch.float32) for name in ("BERT", "Llama", "T5")),
    *(manner(name, "bfloat16", torch.bfloat16) for name in ("BERT", "Llama", "T5")),
    *(
        manner(name, "autocast", torch.float32, call=lowered, tolerance=0.1)
        for name in ("BERT", "Llama")
    ),
]
