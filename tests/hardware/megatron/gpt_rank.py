"""One rank of a whole GPTModel, on groups of Megatron's own, filled with a model's weights.

python -m tests.hardware.megatron.gpt_rank RANK FOLDER STAGESxSHARDS tied|untied cpu|cuda
"""

import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed as dist
from torch.distributed import FileStore
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

from gyre.model.network import Network
from gyre.trainer.distributed.rank_comm import RankPosition
from gyre.trainer.megatron.weights import to_megatron

VOCABULARY, CONTEXT = 96, 64
IDS = torch.arange(40).mul(7).remainder(VOCABULARY)[None]


def plain(tied):
    """The model as transformers has it, in float32."""
    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=tied,
        initializer_range=0.1,
    )
    module = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, one in module.named_parameters():
            if "norm" in name:
                one.add_(torch.randn_like(one) * 0.1)
    return module


def built(module, place, tied):
    """Megatron's own model: its embedding, layers, attention and head."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    config = module.config
    made = TransformerConfig(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        ffn_hidden_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_key_value_heads,
        kv_channels=config.head_dim,
        layernorm_epsilon=config.rms_norm_eps,
        tensor_model_parallel_size=place.shards,
        pipeline_model_parallel_size=place.stages,
        pipeline_dtype=torch.float32,
        normalization="RMSNorm",
        qk_layernorm=True,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=functional.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        use_cpu_initialization=True,
    )
    return GPTModel(
        config=made,
        transformer_layer_spec=get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm"),
        vocab_size=VOCABULARY,
        max_sequence_length=CONTEXT,
        pre_process=place.is_first,
        post_process=place.is_last,
        parallel_output=False,
        share_embeddings_and_output_weights=tied,
        position_embedding_type="rope",
        rotary_base=config.rope_parameters["rope_theta"],
    ).eval()


def fill(model, tensors):
    """Every parameter, and nothing else is left over."""
    held = dict(model.named_parameters())
    assert held.keys() == tensors.keys(), held.keys() ^ tensors.keys()
    with torch.no_grad():
        for name, one in held.items():
            assert one.shape == tensors[name].shape, name
            one.copy_(tensors[name])


@torch.no_grad()
def passed(model, place):
    """What leaves this stage: states for the next one, or logits."""
    if not place.is_first:
        states = torch.empty(IDS.shape[1], 1, 64)
        dist.recv(states, place.rank - place.shards)
        model.set_input_tensor(states)
    ids = IDS.to(next(model.parameters()).device)
    found = model(ids, torch.arange(ids.shape[1], device=ids.device)[None], None)
    if not place.is_last:
        dist.send(found.contiguous(), place.rank + place.shards)
    return found


def surroundings(device):
    """On a CPU it needs what only tests have; on CUDA, random numbers of its own."""
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
    from tests.hardware.megatron.shim import on_cpu

    if device == "cpu":
        return on_cpu()
    model_parallel_cuda_manual_seed(1)
    return nullcontext()


def main(rank, folder, layout, kind, device):
    # Megatron tells of everything that it falls back from.
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state

    torch.set_num_threads(1)
    stages, shards = map(int, layout.split("x"))
    place = RankPosition.of(int(rank), stages=stages, shards=shards)
    folder = Path(folder)
    store = FileStore(str(folder / "store"), place.size)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size)
    parallel_state.initialize_model_parallel(shards, stages)
    with surroundings(device):
        module = plain(kind == "tied")
        tensors = {name: one.detach() for name, one in module.named_parameters()}
        model = built(module, place, kind == "tied").to(device)
        fill(model, to_megatron(tensors, Network(module).shape, place))
        logits = passed(model, place)
    if place.is_last and place.shard == 0:
        save_file({"logits": logits[0].contiguous().cpu()}, folder / "logits.safetensors")
    held = {name: one.detach().cpu().clone() for name, one in model.named_parameters()}
    save_file(held, folder / f"held-{rank}.safetensors")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
