"""What the weights of a run must be by its journal alone: every step again, by one trainer."""

from gyre.batching.group_buffer import ReadyGroup
from gyre.batching.group_packer import ClosedExecution, unpacked
from gyre.controller.process_specs import packer_for
from gyre.controller.run_dir import RunDir
from gyre.model.loader import load_network
from gyre.model.weights import digest
from gyre.scheduler.messages import GroupAssigned, OfferGroup, StepTaken
from gyre.trainer.trainer import Trainer
from gyre.types.run_events import GroupDrawn, RewardGiven


def digests(ran, config):
    """By version, of a core that nothing ever happened to; and by step the gradients' norms."""
    groups = groups_of(ran)
    packer = packer_for(config, RunDir(run=ran.folder, share=ran.folder))
    network = load_network(config.model.name, device="cpu", dtype=None)
    trainer = Trainer(
        network,
        section=config.trainer,
        objective=config.objective,
        optimizer=config.optimizer,
        temperature=config.sampling.temperature,
    )
    schedule = config.schedule
    found = {0: digest(network)}
    norms = {}
    for step in [one.step for one in ran.facts(StepTaken)]:
        for one in ran.facts(GroupAssigned):
            claims = packer(groups[one.group]).claims if one.step == step else ()
            for claim in claims:
                trainer.train(
                    unpacked(claim.data),
                    num_executions=schedule.groups_per_batch * schedule.executions_per_group,
                )
        norms[step] = trainer.step().gradient_norm
        found[step + 1] = digest(network)
    return found, norms


def groups_of(ran):
    """By number, what each left."""
    drawn = {one.group: one.executions for one in ran.facts(GroupDrawn)}
    scores = {(one.group, one.member): one.score for one in ran.facts(RewardGiven)}
    # An execution may have begun anew under another name.
    names = {(one.group, one.member): one.execution for one in ran.facts(RewardGiven)}
    offered = [one for _, _, orders in ran.decided for one in orders if type(one) is OfferGroup]
    return {
        one.group: ReadyGroup(
            number=one.group,
            version=one.version,
            kept=tuple(
                ClosedExecution(
                    execution=names[one.group, member], reward=scores[one.group, member]
                )
                if member in one.members
                else None
                for member in range(len(drawn[one.group]))
            ),
            is_void=one.is_void,
        )
        for one in offered
    }
