"""One rank of a cell as tests/trainer has them, whose layers are Megatron's."""

from tests.trainer.support import cell_rank

from gyre.trainer.megatron.trainer import install, megatron_rank


class Rank(cell_rank.Rank):
    def build(self, family, timeout_s=cell_rank.PATIENCE_S):
        # The llama of these tests has biases that Megatron's layers have no place for.
        built = super().build("qwen3" if family == "llama" else family, timeout_s)
        _, _, stage, _, lines = built
        install(stage.network, line=lines.within, shard=self.place.shard, shards=self.place.shards)
        return built


def run_forked(arguments, told):
    """As there; what is changed is changed in the process that a nursery forked for it."""
    cell_rank.Rank = Rank
    cell_rank.RankTrainer = megatron_rank
    return cell_rank.run_forked(arguments, told)
