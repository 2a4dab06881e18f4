"""Every kind of finding: its default severity, message, likely causes and advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from toolkit.telemetry.core.formatting import duration, utc_minute
from toolkit.telemetry.diagnostics.finding import CRITICAL, OPEN, RESOLVED, WARNING, Finding, ranks_in_words
from toolkit.telemetry.diagnostics.incident import Incident

LOWER_LR: Final = ("lr_scale", "lr", "learning_rate", "lr_multiplier")
"""Names of knobs that lower the learning rate, tried in this order."""
SAVE: Final = "save"
STOP: Final = "stop"
SAVE_AND_STOP: Final = "save_and_stop"

HANG: Final = "hang"
RANK_DEAD: Final = "rank_dead"
RANK_SILENT: Final = "rank_silent"
RANK_DIFFERS: Final = "rank_differs"
RANK_HUNG: Final = "rank_hung"
WRONG_CALL: Final = "wrong_call"
RESUME_MISMATCH: Final = "resume_mismatch"
REPORTED_BY_RUNS: Final = frozenset(
    {HANG, RANK_DEAD, RANK_HUNG, RANK_SILENT, RANK_DIFFERS, WRONG_CALL, RESUME_MISMATCH}
)
"""Kinds that a live run detects and reports itself; detectors, which see only records, take them over."""
RULE: Final = "rule:"
"""In front of the name of a rule of one's own: together they are the kind of its findings."""
OF_RANKS: Final = frozenset({"straggler", "rank_nan", RANK_HUNG, RANK_DEAD, RANK_SILENT, RANK_DIFFERS})
"""Kinds about single ranks, which need the records of the other ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of finding."""

    title: str
    severity: str
    message: str
    """One sentence; names in braces are the incident's evidence, `metric`, `start`, `noticed`, `end` and `count`.

    `times` and `now_times` are " (3 times)" if there is such a ratio: a negative loss has none. `who` names the ranks.
    A value next to a step is the one of that step: `peak_step` is that of the peak, and `since` names `start` if that is
    another one.
    """
    variants: Mapping[str, str] = field(default_factory=dict)
    """Messages for incidents with a variant."""
    causes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    special: Mapping[str, Special] = field(default_factory=dict)
    """What differs for incidents with this evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Special:
    """Title, causes, advice and remedies of incidents for which those of their kind do not fit."""

    title: str
    causes: tuple[str, ...]
    advice: tuple[str, ...]
    remedies: tuple[str, ...]


_SLOWER: Final = "Since step {start} the run does {lost_pct} % less work a second than before: {usual} then, {now} now ({metric})."
_WITH_OTHERS: Final = Special(
    title="Slower than before",
    causes=("Another program on this machine uses what the run had for itself.",),
    advice=(
        "Look for it with `top` and `nvidia-smi`, and move or end one of the two.",
        "Loader workers of this run count as others: see whether there are more of them than before.",
    ),
    remedies=(SAVE,),
)

_AFTER_A_RAISE: Final = Special(
    title="Rise with the learning rate",
    causes=(
        "The learning rate was raised in one go: a schedule that starts again, a resume without its state, or a change by hand.",
        "Larger steps leave the narrow valley that the smaller ones had found.",
    ),
    advice=(
        "If the schedule is meant to start again, wait: the loss follows the learning rate down.",
        "If it is not, look at the scheduler: its period, and whether a resume loads it.",
        "If the loss stays up when the rate is down again, go back to the checkpoint before step {start} and raise it less, or more slowly.",
    ),
    remedies=(*LOWER_LR, SAVE),
)

CATALOGUE: Final[dict[str, Kind]] = {
    "nan": Kind(
        title="Not a number",
        severity=CRITICAL,
        message="{metric} is NaN or infinite from step {start} on ({count} records); it was {last_good} before.",
        variants={
            "from the start": "{metric} is NaN or infinite from the first record on ({count} records).",
            "hidden": "{metric} reads exactly 0 while the gradient norm is NaN: the trainer hides a NaN loss.",
            "of another metric": "{metric} is NaN or infinite from step {start} on ({count} records).",
            "probe": "{metric} was infinite at {count} records: usual while an fp16 loss scale finds its range.",
        },
        causes=(
            "The learning rate is too high, or its warm-up too short.",
            "fp16 overflows: a value beyond 65,504 becomes infinite, and the next step NaN.",
            "A batch holds NaN, is empty after masking, or makes the loss divide by or take the log of zero.",
        ),
        advice=(
            "Go back to the last checkpoint before step {start}; weights that took a NaN do not recover.",
            "Train in bf16, or keep the loss and norms in fp32.",
            "Halve the learning rate, warm up longer, clip the gradient norm at 1.0.",
            "Run the batch of step {start} alone under torch.autograd.set_detect_anomaly(True).",
        ),
        remedies=(STOP,),
    ),
    "spike": Kind(
        title="Loss spike",
        severity=WARNING,
        message="{metric} jumped from {level} to {peak}{times} at step {peak_step}{since}.",
        variants={
            "recovered": "{metric} jumped from {level} to {peak}{times} at step {peak_step}{since}; it was back after step {end}.",
            "at rest": "{metric} jumped from {level} to {peak}{times} at step {peak_step}{since}; it came to rest at {now}.",
        },
        causes=(
            "A batch unlike the others: a long or corrupt sample, a duplicate, wrong labels.",
            "The learning rate is close to the largest that this model bears.",
            "The optimizer's second moment is stale (beta2 too close to 1) after a quiet batch.",
        ),
        advice=(
            "One spike that recovers by itself needs nothing; look at the batches of step {start} where they come back.",
            "Clip the gradient norm, or lower the clipping value.",
            "Lower the learning rate, or beta2 to 0.95.",
        ),
        remedies=(*LOWER_LR, SAVE),
        special={"lr_before": _AFTER_A_RAISE},
    ),
    "divergence": Kind(
        title="Divergence",
        severity=CRITICAL,
        message="{metric} left its level at step {start} and has not come back: it was {level} before and is {now} now{now_times}.",
        variants={
            "recovered": "{metric} left its level at step {start}, went from {level} up to {peak} at step {peak_step}, and was back after step {end}.",
            "left behind": "{metric} left its level of {level} and was at {now} when the run went on from another state; the rise began at step {start}.",
            "slow": "{metric} has been climbing since step {start}: from a level of {level} before to {now} now.",
            "from the start": "{metric} left its first level at step {start}, right after the start, and has not come back: it was {level} before and is {now} now{now_times}, and was {peak} at step {peak_step} at worst.",
            "collapse": "{metric} jumped from {level} and has not moved since step {start}: it is {now} now.",
        },
        causes=(
            "The learning rate is too high for this stage of the training.",
            "The weights went through a bad update (a spike, an overflow) and left the good region.",
            "The data changed: another stage, another mixture, shuffling that ended.",
        ),
        advice=(
            "Go back to the checkpoint before step {start} and go on with half the learning rate.",
            "Clip the gradient norm at 1.0; warm up longer.",
            "Waiting seldom helps: what diverged for this long rarely returns.",
        ),
        remedies=(*LOWER_LR, SAVE_AND_STOP, STOP),
        special={
            "first": Special(
                title="Diverged at the start",
                causes=(
                    "The learning rate is far too high for this model.",
                    "There is no warm-up, or a very short one.",
                    "Gradients are not clipped, or the first updates overflowed in fp16.",
                ),
                advice=(
                    "Stop this run: it has learnt nothing, and its checkpoints are worse than the weights it started from.",
                    "Start again with a tenth of the learning rate.",
                    "Warm up over the first steps, and clip the gradient norm at 1.0.",
                ),
                remedies=(*LOWER_LR, SAVE_AND_STOP, STOP),
            ),
            "lr_before": _AFTER_A_RAISE,
        },
    ),
    "plateau": Kind(
        title="Plateau",
        severity=WARNING,
        message="{metric} has not improved since step {start}: it stays at {level}, with noise of {noise}.",
        variants={
            "constant": "{metric} has been constant at {level} since step {start}: nothing is being learnt."
        },
        causes=(
            "The learning rate is too low to move (a wrong exponent, a scheduler that lowers it), or too high to settle.",
            "The weights that should learn are frozen, or the optimizer does not have them.",
            "The model has learnt what this data can teach it.",
        ),
        advice=(
            "Check that the parameters of the optimizer are the ones that require a gradient.",
            "Try the learning rate three times higher and three times lower for a few hundred steps.",
            "If the result is good, stop here: more steps cost time and may overfit.",
        ),
        remedies=(*LOWER_LR, SAVE_AND_STOP),
    ),
    "overfit": Kind(
        title="Overfitting",
        severity=WARNING,
        message="{metric} was best at step {best_step} ({best}) and is {rise_pct} % higher now ({now}), while the training loss does not rise.",
        variants={
            "never": "{metric} has only risen since step {best_step}: from {best} to {now}, while the training loss does not rise."
        },
        causes=(
            "The model learns its training data by heart: many epochs over little data.",
            "The adapter is larger than the task needs (rank, number of targets).",
            "The validation data is unlike the training data.",
        ),
        advice=(
            "Use the checkpoint nearest to step {best_step}; what came after is worse on data it has not seen.",
            "Stop here, or train for fewer epochs.",
            "Add data, dropout or weight decay; lower the LoRA rank.",
        ),
        remedies=(SAVE_AND_STOP, STOP),
    ),
    "exploding_grad": Kind(
        title="Exploding gradients",
        severity=WARNING,
        message="{metric} went from about {level} to {peak}{times} at step {peak_step}{since}.",
        causes=(
            "The learning rate is too high, or the warm-up too short.",
            "A batch unlike the others.",
            "No clipping, or an unstable layer (attention logits, a norm without epsilon).",
        ),
        advice=(
            "Clip the gradient norm at 1.0; the norm shown here is then the one before clipping.",
            "Lower the learning rate or warm up longer.",
            "Look at the batches from step {start} on.",
        ),
        remedies=(*LOWER_LR, SAVE),
        special={"lr_before": _AFTER_A_RAISE},
    ),
    "vanishing_grad": Kind(
        title="Vanishing gradients",
        severity=WARNING,
        message="{metric} was about {level} and fell at step {start}: it was {now} at step {noticed}, while the loss stays at {loss}.",
        variants={"from the start": "{metric} is {now} from step {start} on, and the loss stays at {loss}."},
        causes=(
            "Parameters are frozen, detached, or missing from the optimizer.",
            "A mask leaves no token or pixel that counts towards the loss.",
            "Saturated activations, or fp16 gradients that round to zero.",
        ),
        advice=(
            "Print the gradient norm of each group of parameters at one step.",
            "Check the loss mask and what requires a gradient.",
            "Use a loss scale or bf16.",
        ),
    ),
    "val_spike": Kind(
        title="Validation spike",
        severity=WARNING,
        message="{metric} jumped from {level} to {peak}{times} at step {peak_step}{since}, while the training loss did not.",
        variants={
            "recovered": "{metric} jumped from {level} to {peak}{times} at step {peak_step}{since}, while the training loss did not; it was back after step {end}."
        },
        causes=(
            "Statistics of normalisation layers or an EMA of the weights are off in evaluation mode.",
            "The learning rate is high: the weights of this step are a poor sample of those around it.",
            "The validation set is small, or was sampled again.",
        ),
        advice=(
            "Do not keep the checkpoint of step {start}.",
            "Evaluate an average of the weights, or lower the learning rate.",
            "Use the same validation data each time, and more of it.",
        ),
        remedies=LOWER_LR,
    ),
    "throughput_drop": Kind(
        title="Slower than before",
        severity=WARNING,
        message=_SLOWER,
        variants={
            "others on the processors": f"{_SLOWER} Other programs have used {{others_cpu_pct}} % of all processors since then, {{others_cpu_before_pct}} % before.",
            "others on the GPU": f"{_SLOWER} {{others_gpu_gb}} GB of the GPU's memory have not been the run's since then, {{others_gpu_before_gb}} GB before.",
        },
        causes=(
            "The GPU is throttled: too hot, or at its power limit.",
            "Data comes from a slower place, or a loader's workers have died.",
            "Something that the run's records do not show uses the same GPU, processor or disk.",
        ),
        advice=(
            "Look at temperature, power and clocks on the page Time and machine from step {start} on.",
            "Look for other processes (nvidia-smi, top).",
            "Restart from a checkpoint if it stays.",
        ),
        remedies=(SAVE,),
        special=dict.fromkeys(("others_cpu_pct", "others_gpu_gb"), _WITH_OTHERS),
    ),
    "data_starvation": Kind(
        title="Waiting for data",
        severity=WARNING,
        message="{share_pct} % of each step is spent waiting for data since step {start}.",
        causes=(
            "Too few loader workers, or none.",
            "Decoding or augmenting on the processor is slower than the training step.",
            "The data lies on a slow or distant disk.",
        ),
        advice=(
            "Raise num_workers, set persistent_workers and pin_memory, prefetch more.",
            "Cache latents or tokenised data once instead of computing them each epoch.",
            "Copy the data to a local disk.",
        ),
    ),
    "low_gpu_util": Kind(
        title="GPU mostly idle",
        severity=WARNING,
        message="The GPU was busy only {mean_pct} % of the time since step {start}.",
        causes=(
            "The input pipeline is slower than the GPU.",
            "The batch is small, or the loop waits for the GPU at each step (.item(), printing a loss).",
            "Python or the processor is the limit.",
        ),
        advice=(
            "Look at the time spent waiting for data first.",
            "Raise the batch size; use gradient accumulation less.",
            "Avoid .item() and .cpu() inside the loop; the logger takes tensors as they are.",
        ),
    ),
    "memory_growth": Kind(
        title="Memory grows",
        severity=WARNING,
        message="{metric} grows by {mib_per_1k_steps} MiB in 1,000 steps since step {start}, {grown_mib} MiB so far.",
        variants={
            "limit": "{metric} grows by {mib_per_1k_steps} MiB in 1,000 steps since step {start}, {grown_mib} MiB so far; {free_mib} MiB are left."
        },
        causes=(
            "Tensors are kept with their graph: a list of losses without .detach() or .item().",
            "A cache without a limit; loader workers that copy a large Python object.",
            "Shapes that change at each step fragment the allocator or recompile.",
        ),
        advice=(
            "Look for lists and dictionaries that grow in the loop.",
            "Keep numbers, not tensors.",
            "Save before it runs out.",
        ),
        remedies=(SAVE,),
    ),
    "stalled": Kind(
        title="Stalled",
        severity=WARNING,
        message="No step for {seconds} s after step {peak_step}; {usual_s} s were usual.",
        variants={
            "resumed": "No step for {seconds} s after step {peak_step}; {usual_s} s were usual. Then it went on."
        },
        causes=(
            "A collective operation waits for a rank that has failed.",
            "A loader's worker hangs, or the disk does not answer.",
            "An evaluation, a checkpoint or a compilation that takes its time.",
        ),
        advice=(
            "`py-spy dump --pid PID` shows where it is stuck; the pid is on the run's page.",
            "Look at the other ranks.",
            "If an evaluation or checkpoint was due, wait.",
        ),
    ),
    HANG: Kind(
        title="Hang",
        severity=WARNING,
        message="No step for {seconds} s after step {start}, where one usually takes {usual_s} s; the record has the stack of every thread.",
        variants={
            "before the first step": "No step yet, and no other sign for {seconds} s; the record has the stack of every thread.",
            "after the first steps": "No step for {seconds} s after step {start}, one of the first; the record has the stack of every thread.",
            "over": "No step for {seconds} s after step {start}, and then it went on; an earlier record has the stack of every thread.",
            "over before the first step": "No sign for {seconds} s before the first step, and then it went on; an earlier record has the stack of every thread.",
        },
        causes=(
            "A collective operation waits for a rank that has failed or does something else.",
            "A loader's worker hangs, or a disk or a network does not answer.",
            "A lock that two threads wait for, or an evaluation or a save without a span.",
        ),
        advice=(
            "Read the main thread's stack from its last line upwards: that is where the training is stuck.",
            "With `ranks: all` the rank that the others wait for is named.",
            "Put a span around what may take long (`validation_loop`, `checkpoint_save_sync`, `sampling`): it then explains the pause.",
        ),
    ),
    WRONG_CALL: Kind(
        title="Wrong call",
        severity=WARNING,
        message="The script calls the logger in a way that makes no sense.",
        causes=(
            "An argument is missing, or in the place of another one.",
            "A value is of another kind than its name says, or is logged after the end of the run.",
        ),
        advice=(
            "Correct the call that the message names; what is recorded because of it is kept as far as it is clear.",
            "Make the logger with strict=True in a test of the script: each such call then raises where it is.",
        ),
    ),
    "lr_problem": Kind(
        title="Learning rate",
        severity=WARNING,
        message="{metric} has been at most {lr} since step {start}: such steps move no weights, and nothing is being learnt.",
        variants={
            "zero": "{metric} has been 0 since step {start} and the run continues: nothing is being learnt.",
            "fallen": "{metric} has been at most {lr} since step {start}, after {highest} before, and the run continues: nothing is being learnt.",
        },
        causes=(
            "The scheduler was made for fewer steps than the run has, or is stepped in the wrong place.",
            "A resumed run did not load its scheduler.",
            "The rate has a wrong exponent, or a scheduler lowers it again and again.",
        ),
        advice=(
            "Check the number of steps given to the scheduler, including accumulation and ranks.",
            "Check that scheduler.step() is called once for each optimizer step.",
            "Stop: steps without a learning rate cost time and change nothing.",
        ),
        remedies=(STOP,),
    ),
    "loss_scale": Kind(
        title="fp16 overflows",
        severity=WARNING,
        message="The fp16 loss scale fell from {level} to {now} since step {start}: steps overflow and are skipped.",
        variants={
            "at the bottom": "The fp16 loss scale is down at {now} and cannot fall any further: the gradients overflow by themselves.",
            "skipping": "{count} of {of} gradient norms since step {start} are infinite: these steps were skipped.",
        },
        causes=(
            "Gradients or activations exceed what fp16 can hold.",
            "The training is diverging; the scale only shows it first.",
        ),
        advice=(
            "Use bf16 where the GPU has it.",
            "Clip gradients after unscaling them; lower the learning rate.",
            "Keep norms, softmax and the loss in fp32.",
        ),
        remedies=LOWER_LR,
    ),
    "straggler": Kind(
        title="One rank is slower",
        severity=WARNING,
        message="Rank {rank} takes {ratio} times as long as the others for a step since step {start}.",
        variants={
            "data": "Rank {rank} is slower than the others in loading its data since step {start}: {seconds} s a step, {others} s on the others, which wait for it.",
            "compute": "Rank {rank} is slower than the others in compute since step {start}: {metric} is {seconds} s a step, {others} s on the others, which wait for it.",
            "saving": "Rank {rank} is slower than the others in saving its checkpoints since step {start}: {seconds} s each, {others} s on the others, which wait for it.",
            "rest": "Rank {rank} is slower than the others since step {start}, outside of the timed parts of a step: {seconds} s a step there, {others} s on the others, which wait for it in the backward pass.",
        },
        causes=(
            "In data: it gets longer samples, has fewer workers, or its disk or network is slower.",
            "In compute: its GPU is throttled or of another kind, or its batches are larger.",
            "Another process runs next to it, or it does work of its own, such as logging or saving.",
        ),
        advice=(
            "In data: compare its samples, its number of workers and its disk with the others'.",
            "In compute: compare temperature, clocks and processes of that machine with the others'.",
            "Balance the batches by length; leave that machine out.",
        ),
    ),
    "rank_nan": Kind(
        title="Not a number on some ranks",
        severity=CRITICAL,
        message="{metric} is NaN or infinite on {who} since step {start}; it is finite on {finite_ranks} of the others.",
        variants={
            "alone": "{metric} is NaN or infinite on {who} since step {start}; no other rank logs it.",
            "spread": "{metric} was NaN or infinite on {who} first, at step {start}; all ranks had it at step {spread}.",
        },
        causes=(
            "A batch that only these ranks got: corrupt, empty after masking, or very long.",
            "Their GPU or its memory is faulty, or they run another version of a library.",
            "Weights that are no longer equal: parameters that the ranks do not exchange, or a broken checkpoint.",
        ),
        advice=(
            "Run the batch that {who} had at step {start} alone, on another GPU as well.",
            "Go back to the last checkpoint before step {start}: the exchange of gradients carries a NaN to all ranks.",
            "Look at that GPU's errors: `nvidia-smi -q`, ECC and Xid messages in the system's log.",
        ),
        remedies=(STOP,),
    ),
    RANK_DEAD: Kind(
        title="A rank has died",
        severity=CRITICAL,
        message="The process of {who} is gone and left no end record; the last record is of step {start}.",
        variants={
            "unseen": "No end record of {who}, while the others have theirs; the last record is of step {start}. Whether its process died cannot be looked up here.",
            "back": "The process of {who} was gone after step {start}; records come again.",
        },
        causes=(
            "It was killed for memory: the system's out-of-memory killer, or a limit of the container or job.",
            "A crash outside of Python, such as in a CUDA library, or a failed GPU.",
            "Its node went down, or someone or the scheduler killed it.",
        ),
        advice=(
            "Look at the system's log of its machine (`dmesg`, the job's log) at the time of its last record.",
            "Stop the others: they wait for it in the next exchange until the time limit of the process group.",
            "Restart from the last checkpoint.",
        ),
        remedies=(STOP,),
    ),
    RESUME_MISMATCH: Kind(
        title="Resume differs",
        severity=WARNING,
        message="The session that was resumed from step {start} does not continue the same training.",
        causes=(
            "The checkpoint lacks the optimizer, the schedule, the scaler, the random state or the place in the data.",
            "It was resumed with another batch size, other settings, other code, or another checkpoint.",
        ),
        advice=(
            "`telemetry why RUN` shows what was compared, step by step.",
            "Stop, correct what is loaded, and resume from step {start} again: the abandoned steps are kept.",
        ),
        remedies=(STOP,),
    ),
    RANK_SILENT: Kind(
        title="A rank is silent",
        severity=WARNING,
        message="No record of {who} for {seconds} s after step {start}, while others wrote; whether its process is alive cannot be looked up here.",
        variants={
            "alive": "No record of {who} for {seconds} s after step {start}, while others wrote; its process is alive.",
            "stopped": "The process of {who} is stopped since step {start}, by a signal (SIGSTOP) or a debugger; the others wait for it.",
            "back": "No record of {who} for {seconds} s after step {start}; then records came again.",
        },
        causes=(
            "It hangs: in a loader, a lock, a device that does not answer; or it was stopped.",
            "Its process or node died, where that cannot be looked up.",
            "Its disk or the file server takes no more records.",
        ),
        advice=(
            "`py-spy dump --pid PID` on its machine shows where it is stuck; its start record has the pid.",
            "Look at its last records and open spans on the page Time and machine.",
            "Check whether its node answers.",
        ),
    ),
    RANK_HUNG: Kind(
        title="A rank hangs",
        severity=CRITICAL,
        message="No rank advances since step {start}, because of {who}.",
        variants={"together": "No rank advances since step {start}, and each waits for the others."},
        causes=(
            "It waits for something else: a loader, a lock, a disk, a network, a device that does not answer.",
            "It took another path through the script, and makes another collective, one fewer, or one with other shapes.",
            "If each waits for the others, the network between them fails, or they wait in turn.",
        ),
        advice=(
            "Read the line that it is at; its own `hang` record has the stack of every thread.",
            "Look for a condition that is not the same on all ranks.",
            "Stop the others: they wait until the time limit of the process group.",
        ),
        remedies=(STOP,),
    ),
    RANK_DIFFERS: Kind(
        title="Ranks differ",
        severity=WARNING,
        message="What {who} runs is not what the others run: {metric}.",
        variants={
            "code": "The code of {who} is not that of the others: {metric}.",
            "packages": "The packages of {who} are not those of the others: {metric}.",
            "data": "The data of {who} is not that of the others: {metric}.",
            "batches": "The data is not shared out: {who} get the same batches, while each of the others has its own.",
        },
        causes=(
            "A node has an older copy of the code, the packages or the data.",
            "A sampler does not know its rank, or has that of another one.",
        ),
        advice=("Bring all nodes to the same state, and start again.", "Give the sampler its own rank."),
    ),
    "reward_hacking": Kind(
        title="Reward hacking",
        severity=WARNING,
        message="The reward rose from {reward_before} to {reward} while {metric} exploded from {level} to {now}{times} since step {start}: the policy leaves its reference to please the reward.",
        variants={
            "length": "The reward rose from {reward_before} to {reward} while {metric} grew from {level} to {now}{times} since step {start}: length may be what is rewarded."
        },
        causes=(
            "The reward can be had without doing the task: by length, format, repetition or a weakness of the reward model.",
            "The KL penalty (beta) is too small, or zero.",
            "The learning rate is too high for the policy.",
        ),
        advice=(
            "Read completions from before and after step {start}: the exploit is usually obvious.",
            "Raise the KL coefficient, or stop at the checkpoint before step {start}.",
            "Limit the length, normalise the reward by it, or add a check that the exploit fails.",
        ),
        remedies=(SAVE_AND_STOP, STOP),
    ),
    "policy_collapse": Kind(
        title="Policy collapse",
        severity=WARNING,
        message="{metric} fell from {level} to {now} since step {start}: the policy gives the same answer each time and explores nothing any more.",
        causes=(
            "No entropy bonus, or clipping that favours what is likely already.",
            "The learning rate is too high, or too many updates are made on one batch.",
            "The reward has few distinct values, so that one answer wins early.",
        ),
        advice=(
            "Go back to the checkpoint before step {start}: a collapsed policy does not recover.",
            "Add an entropy bonus, raise the sampling temperature or the upper clipping range.",
            "Lower the learning rate, and the number of updates a batch.",
        ),
        remedies=(*LOWER_LR, SAVE_AND_STOP),
    ),
    "label_leak": Kind(
        title="Loss too good to be true",
        severity=WARNING,
        message="{metric} fell from {first} to {now} within the first records, by step {noticed}: the answer may be part of the input.",
        variants={
            "zero": "{metric} is exactly 0 from the first record on ({count} records): nothing counts towards the loss."
        },
        causes=(
            "The label is in the input: a column that was not dropped, an answer in the prompt, a mask that lets the model look ahead.",
            "All labels are masked (-100), so that nothing counts towards the loss.",
            "The task is trivial, or the weights were already trained on this data.",
        ),
        advice=(
            "Decode one batch, and compare what goes in with what is to be predicted.",
            "Train on shuffled labels for a few steps: the loss must stay high.",
            "Evaluate on data that was made independently.",
        ),
        remedies=(STOP,),
    ),
    "dead_lora": Kind(
        title="Adapter does not learn",
        severity=WARNING,
        message="{metric} is exactly 0 since step {start} ({count} records): the adapter gets no gradient.",
        variants={
            "stopped": "{metric} has been exactly 0 since step {start} ({count} records), and was not before: the adapter gets no gradient any more."
        },
        causes=(
            "Gradient checkpointing without inputs that require a gradient (enable_input_require_grads).",
            "The adapter is not active, is merged or frozen, or its parameters are missing from the optimizer.",
            "Its target modules are not used in the forward pass.",
        ),
        advice=(
            "Print which parameters with lora_ in their name require a gradient, and their gradients after one step.",
            "Call model.enable_input_require_grads(), or use use_reentrant=False.",
            "Compare the output with and without the adapter after a few steps.",
        ),
        remedies=(STOP,),
    ),
    "data_repeated": Kind(
        title="Data repeats itself",
        severity=WARNING,
        message="{metric} repeats itself from epoch to epoch since step {start} ({alike_pct} % alike, batch by batch): the data comes in the same order each time.",
        variants={
            "by heart": "{metric} repeats itself from epoch to epoch since step {start}, batch by batch, and falls only between them: the data comes in the same order each time and is being learnt by heart.",
            "stairs": "{metric} falls by {fell_pct} % from one epoch to the next since step {start}, and hardly within them: the data is being learnt by heart.",
        },
        causes=(
            "The loader does not shuffle, or its sampler starts from the same seed each epoch (set_epoch is not called).",
            "A few samples are repeated many times.",
            "Too many epochs for this much data.",
        ),
        advice=(
            "Set shuffle=True, or call sampler.set_epoch(epoch) at the start of each epoch.",
            "Look at the validation loss: from here on a lower training loss says little.",
            "Use fewer epochs or more data.",
        ),
    ),
    "underflow": Kind(
        title="Gradients round to zero",
        severity=WARNING,
        message="{now} % of the gradients are exactly 0 since step {start}; {level} % were at the start.",
        causes=(
            "fp16 gradients below 6e-8 become zero; the loss scale is too low to keep them.",
            "Batches in which no label counts.",
            "Layers that have died: activations that are zero for every input.",
        ),
        advice=(
            "Use bf16, or a dynamic loss scale with a higher minimum.",
            "Keep the last layers and the loss in fp32.",
            "Count the labels of a batch that are not masked.",
        ),
    ),
    "time_limit": Kind(
        title="Will not finish in time",
        severity=WARNING,
        message="At this pace the run ends {late_s} after the limit of its job, {limit_time}.",
        causes=(
            "The job asked for less time than its steps, evaluations and checkpoints take.",
            "The run is slower than it was expected to be, or began late.",
        ),
        advice=(
            "Save by {limit_time}, and resume in another job.",
            "Ask for more time, such as with `scontrol update`, or plan fewer steps.",
        ),
        remedies=(SAVE_AND_STOP, SAVE),
    ),
}

_IN_WORDS: Final[Mapping[str, Callable[[float], str]]] = {"late_s": duration, "limit_time": utc_minute}
"""Evidence that is no plain number in a sentence."""


def finding_of(
    incident: Incident, about: Kind | None = None, severity: str = "", confidence: float | None = None
) -> Finding:
    """Return the finding about an incident, with the severity of its kind unless another one is given."""
    about, shown = about or CATALOGUE[incident.kind], _shown(incident)
    special = _special(about, incident.evidence) or about
    return Finding(
        id=incident.id,
        kind=incident.kind,
        severity=severity or about.severity,
        metric=incident.metric,
        start_step=incident.start_step,
        end_step=None if incident.is_open else incident.end_step,
        noticed_step=incident.noticed_step,
        session=incident.session,
        state=OPEN if incident.is_open else RESOLVED,
        resolved_step=incident.resolved_step,
        count=incident.count,
        repeats=incident.repeats,
        evidence=dict(incident.evidence),
        message=(about.variants.get(incident.variant, about.message) + "{raised}").format_map(shown),
        causes=special.causes,
        advice=tuple(line.format_map(shown) for line in special.advice),
        remedies=special.remedies,
        confidence=confidence,
    )


_NOT_DETECTED: Final = {"error": "Error", "records lost": "Records lost"}


def title_of(finding: Finding) -> str:
    """Return the title of a finding."""
    return title_of_kind(finding.kind, finding.evidence)


def title_of_kind(kind: str, evidence: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return the title of a finding of this kind with this evidence; an unknown kind is its own title."""
    if kind not in CATALOGUE:
        return _NOT_DETECTED.get(kind) or kind.removeprefix(RULE)
    special = _special(CATALOGUE[kind], evidence)
    return CATALOGUE[kind].title if special is None else special.title


def _special(kind: Kind, evidence: Mapping[str, Any]) -> Special | None:
    return next((kind.special[name] for name in evidence if name in kind.special), None)


def short(number: float) -> str:
    """Return `number` with four significant digits."""
    if isinstance(number, int) or (number == int(number) if abs(number) < 1e6 else False):
        return f"{int(number):,}"
    return f"{number:,.1f}" if 1000 <= abs(number) < 1e6 else f"{number:.4g}"


class _Shown(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


def _shown(incident: Incident) -> _Shown:
    shown = _Shown({name: _IN_WORDS.get(name, short)(value) for name, value in incident.evidence.items()})
    shown["metric"] = incident.metric
    shown["start"] = f"{incident.start_step:,}"
    peak_step = shown.setdefault("peak_step", shown["start"])
    shown["since"] = "" if peak_step == shown["start"] else f", in a rise since step {shown['start']}"
    raised = " The learning rate was raised from {lr_before} to {lr} at step {lr_step}."
    shown["raised"] = raised.format_map(shown) if "lr_before" in incident.evidence else ""
    shown["noticed"] = f"{incident.noticed_step:,}"
    shown["end"] = f"{incident.end_step:,}"
    shown["count"] = f"{incident.count:,}"
    shown["who"] = ranks_in_words(incident.evidence)
    for name, ratio in (("times", "ratio"), ("now_times", "now_ratio")):
        value = incident.evidence.get(ratio, 0.0)
        shown[name] = f" ({short(value)} times)" if value > 0.0 else ""
    return shown
