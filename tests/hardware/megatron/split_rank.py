"""One of two ranks of Megatron's own that share the experts of a layer, or the tokens of a text.

python -m tests.hardware.megatron.split_rank RANK FOLDER experts|contexts
"""

import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed as dist
from torch.distributed import FileStore
from torch.nn import functional
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

RANKS, EXPERTS, HIDDEN, WIDE = 2, 6, 32, 48
TOKENS, ANGLES = 24, 8
WIDTH = torch.float64


def block():
    """A layer's experts as transformers has them."""
    config = Qwen3MoeConfig(
        hidden_size=HIDDEN,
        moe_intermediate_size=WIDE,
        num_experts=EXPERTS,
        num_experts_per_tok=2,
        norm_topk_prob=True,
    )
    made = Qwen3MoeSparseMoeBlock(config)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for one in made.parameters():
            one.copy_(torch.randn(one.shape, generator=generator) * 0.3)
    return made.to(WIDTH)


def texts():
    """One for each rank, and what the gradient of its result is."""
    generator = torch.Generator().manual_seed(6)
    return torch.randn(2, RANKS, TOKENS, HIDDEN, generator=generator).to(WIDTH)


def names_of(rank):
    """By Megatron's name for what a rank holds: ours, and which of the experts it is."""
    found = {"router.weight": ("gate.weight", None)}
    for at in range(EXPERTS // RANKS):
        expert = rank * (EXPERTS // RANKS) + at
        for theirs, ours in (("linear_fc1", "gate_up_proj"), ("linear_fc2", "down_proj")):
            name = f"experts.local_experts.{at}.{theirs}.weight"
            found[name] = (f"experts.{ours}", expert)
    return found


def built():
    """The same in Megatron's words, by its local specification."""
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.spec_utils import build_module

    config = TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=4,
        num_moe_experts=EXPERTS,
        moe_ffn_hidden_size=WIDE,
        moe_router_topk=2,
        moe_router_load_balancing_type="none",
        # The other way to send tokens around wants streams of CUDA.
        moe_token_dispatcher_type="allgather",
        expert_model_parallel_size=RANKS,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=functional.silu,
        bias_activation_fusion=False,
        gradient_accumulation_fusion=False,
        params_dtype=WIDTH,
        use_cpu_initialization=True,
    )
    spec = get_moe_module_spec(use_te=False, num_experts=EXPERTS)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    return build_module(spec, config=config, layer_number=1, pg_collection=groups)


def experts(rank):
    """What the rank's text becomes, and the gradients of what the rank holds."""
    layer, plain = built(), dict(block().named_parameters())
    held = dict(layer.named_parameters())
    names = names_of(rank)
    assert held.keys() == names.keys(), held.keys() ^ names.keys()
    with torch.no_grad():
        for name, (ours, expert) in names.items():
            held[name].copy_(plain[ours] if expert is None else plain[ours][expert])
    given, gradient = (one[rank][:, None] for one in texts())
    found, _ = layer(given)
    found.backward(gradient)
    return {"found": found[:, 0]} | {name: one.grad for name, one in held.items()}


def contexts(rank):
    """The rank's part of a text and of its angles; what attention over parts needs is not here."""
    from megatron.core import parallel_state
    from megatron.core.models.common.embeddings.rope_utils import get_pos_emb_on_this_cp_rank
    from megatron.core.utils import get_batch_on_this_cp_rank

    group = parallel_state.get_context_parallel_group()
    assert rank == group.rank()
    text = {"position_ids": torch.arange(TOKENS)[None]}
    positions = get_batch_on_this_cp_rank(text, group)["position_ids"][0]
    angles = torch.arange(TOKENS * ANGLES, dtype=WIDTH).reshape(TOKENS, 1, 1, ANGLES)
    return {"positions": positions, "angles": get_pos_emb_on_this_cp_rank(angles, 0, group)}


def main(rank, folder, kind):
    # Megatron tells of everything that it falls back from.
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state
    from tests.hardware.megatron.shim import on_cpu

    torch.set_num_threads(1)
    rank, folder = int(rank), Path(folder)
    store = FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    split = {"experts": "expert_model_parallel_size", "contexts": "context_parallel_size"}[kind]
    parallel_state.initialize_model_parallel(**{split: RANKS})
    with on_cpu():
        found = {"experts": experts, "contexts": contexts}[kind](rank)
    held = {name: one.detach().clone().contiguous() for name, one in found.items()}
    save_file(held, folder / f"{kind}-{rank}.safetensors")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
