"""Every threshold of the detectors, with its reason.

They are ratios, counts of records and robust deviations, independent of the unit of a loss and the length of a run.
"""

from __future__ import annotations

from typing import Final

# ---------------------------------------------------------------- the training loss: spikes and divergence

LEVEL_WINDOW: Final = 50
"""Records that make the level of a curve: enough for a median and quartiles, few enough to follow a falling loss."""
SHORT_WINDOW: Final = 7
"""The same for a curve that falls fast, where the longer window lies far above it; the lower of both levels counts."""
FIRST_RECORDS: Final = 12
"""Below a dozen records a level and its noise are guesses."""
FIRST_RECORDS_FOR_A_BLOW_UP: Final = 3
BLOW_UP: Final = 4.0
BLOW_UP_SPREADS: Final = 1.5
"""Five times the highest loss so far, and far beyond their spread, is enough even for a run of a few records."""
NOTHING_LEFT: Final = 1e-4
"""Below this share of the first losses all losses are equal: what a solved problem does down there does not matter."""
LEAST_NOISE: Final = 0.01
"""Logs are rounded and averaged, so that noise may read as zero; a hundredth of the level is always assumed."""
ALLOWANCE: Final = 2.0
"""Deviations that are taken off each record before they are added up: noise alone then adds up to nothing."""
MOST_OF_ONE_RECORD: Final = 20.0
"""What one record may add: a wild value must not decide by itself what several mild ones would."""
ENOUGH: Final = 8.0
"""The sum at which it is a spike. From 7 to 10 the figures on real curves hardly change: this is the middle."""
ENOUGH_IF_HIGH: Final = 5.0
"""The same for a loss that rose as far as one record has to: seven deviations in one record, or less in several."""
DRIFT: Final = 0.7
"""In a log of running means neighbours differ by less than the noise. Where three records or more add up, this share
of what records seven apart differ by is assumed: all of it would include how a falling curve bends."""
TAIL_WINDOW: Final = 200
TAIL_SHARE: Final = 0.95
TAIL_SIGMAS: Final = 1.9
"""Normal noise puts one record in twenty 1.9 deviations above these levels; one with a long tail puts it higher."""
LEAST_RISE: Final = 0.2
"""A rise of less than a fifth is not a spike, however quiet the curve."""
RISES: Final = (1.5, 0.7, LEAST_RISE)
"""By how much of its level the loss has to rise in one record, in two, in more: one odd batch is back at once."""
TOP_RISE: Final = 0.3
TOP_ENOUGH: Final = 16.0
"""Of three records or more it is enough that the highest rose by this much: a spike may be on its way back by then."""
ALONE_RISE: Final = 9.0
ALONE_SIGMAS: Final = 6.3
ALONE_ABOVE: Final = 2.0
"""One record at ten times its level, three times the highest of the last fifty: no noise makes that."""
BACK_SIGMAS: Final = 1.0
BACK_RISE: Final = 0.1
BACK_SHARE: Final = 0.2
"""It is over when the middle of the last records is within a tenth, or the noise, of the level it left; when it would
become a divergence, a fifth of its height is near enough: on a plot that is back."""
CALM_RECORDS: Final = 4
"""More than half of the short window: before that its median still reflects the time before the spike."""
LASTING_RECORDS: Final = 10
LASTING_SHARE: Final = 0.1
"""A spike that lasts this long, and a tenth of the run, is called a divergence while it lasts…"""
LONG_SHARE: Final = 0.25
"""…and stays one after its recovery only where it took a quarter of the run: shorter ones were spikes after all."""
NO_CHANGE: Final = 1e-4
SAME_RECORDS: Final = 4
COLLAPSE_RISE: Final = 0.05
"""A loss that is constant to four digits, above where it was, comes from a model with one answer for everything."""
CLIMB: Final = 0.2
CLIMB_SIGMAS: Final = 1.0
CLIMB_RECORDS: Final = 6
CLIMB_SHARE: Final = 0.05
"""A climb too slow for the windows: the level is a quarter above its best for a twentieth of the run."""
CLIMB_PART: Final = 4
CLIMB_SHORT: Final = 200
CLIMB_LOOK_EVERY_IF_SHORT: Final = 2
"""In a short run the level is that of its last quarter, and it is looked at more often."""
CLIMB_LOOK_EVERY: Final = 8
"""Slow things need no look at every record."""
START_RECORDS: Final = 40
START_LEAD: Final = 8
START_AFTER: Final = 12
"""Losses of the first few records, each below all that follow: the run left them at once and is not back."""
START_RISE: Final = 1.0
START_APART: Final = 0.2
START_SIGMAS: Final = 6.0
"""To twice the level, a fifth between the two, and clear of their noise: a first loss may be low by luck."""
LR_RAISED: Final = 3.0
LR_RAISED_OVER: Final = 10
LR_RAISED_WITHIN: Final = 50
LR_BACK: Final = 1.5
"""A rise soon after the learning rate was tripled, within so many losses, belongs to a schedule that starts again; it
should be over when the rate is down to half as much again as before."""

# ---------------------------------------------------------------- plateau

PLATEAU_BLOCKS: Final = 48
"""The whole curve is kept as at most so many medians; then pairs are merged, so that memory does not grow."""
PLATEAU_MOST_OF_A_BLOCK: Final = 256
"""Records of a segment that make its median: more of them hardly move it, and their number would grow with the run."""
PLATEAU_SHARE: Final = 0.7
"""A plateau is most of a run. Half of it is what every healthy curve shows after its steep beginning."""
PLATEAU_GAIN: Final = 0.03
"""Healthy runs gain more than this over their later 70 %, most of them many times as much."""
PLATEAU_Z: Final = -1.64
"""A fall that chance gives once in twenty may be real: then nothing is reported."""
PLATEAU_PATIENCE: Final = 2.0
PLATEAU_PATIENCE_TO_WARN: Final = 1.6
"""How much more of both it takes to end a plateau, or to keep it from becoming a warning: else noise would decide."""
PLATEAU_CONFIRM: Final = 6
"""Looks in a row, a fifth of the run together: a short flat part is not a plateau."""
PLATEAU_FIRST_RECORDS: Final = 100
PLATEAU_SURE_RECORDS: Final = 800
"""Noise hides a slow gain for hundreds of records. Before that a plateau is an info, not a warning."""
PLATEAU_FEW_RECORDS: Final = 300
PLATEAU_ERRORS: Final = 3.5
PLATEAU_MOST_GAIN: Final = 0.05
PLATEAU_Z_IF_SHORT: Final = 0.0
PLATEAU_OF_START: Final = 0.9
"""A shorter one is a warning too where a gain of a twentieth in 300 records, or as much less in fewer, cannot hide."""
PLATEAU_SURE_OF_PLAN: Final = 0.25
"""And where the run says how many steps are planned, the first quarter of them is too early for a warning."""
CONSTANT_WITHIN: Final = 2e-3
CONSTANT_RECORDS: Final = 10
CONSTANT_SHARE: Final = 0.3
"""A loss without any noise is stuck: no two batches are that alike."""
SOLVED: Final = 1e-3
"""A loss that has fallen to a thousandth has little left to learn."""
DECAYED: Final = 0.05
"""Where the schedule has taken the learning rate to its end, a flat loss is expected."""

# ---------------------------------------------------------------- gradient norms

NORM_WINDOW: Final = 100
NORM_FIRST_RECORDS: Final = 8
"""The first norms of a run are large; they are the measure of what is large later."""
NORM_OF_FIRST: Final = 0.5
"""Norms fall by decades while a model learns: one of half the first ones' size or less explodes nothing."""
NORM_HIGH: Final = 0.9
NORM_OF_HIGH: Final = 3.0
"""Norms that grow step by step are no explosion, nor are those that vary by decades all the time: where the loss does
not feel it, it takes three times what one norm in ten exceeds."""
NORM_LEVEL_EVERY: Final = 4
"""Records for which one level is good enough: a ratio of ten does not hang on the last few norms."""
NORM_RATIO: Final = 10.0
"""Norms vary by a factor of two or three from batch to batch; ten is outside of that on every curve we have seen."""
NORM_RATIO_AT_ONCE: Final = 30.0
NORM_CONFIRM: Final = 2
"""One large norm is clipped and gone. It counts if it is huge, comes twice, or the loss feels it."""
NORM_LOSS_WITHIN: Final = 5
NORM_LOSS_SIGMAS: Final = 5.0
"""The loss feels it where it leaves its noise within a few records."""
NORM_CALM: Final = 5

# ---------------------------------------------------------------- validation losses

VAL_WINDOW: Final = 7
VAL_FIRST: Final = 4
VAL_RISE: Final = 0.5
VAL_RISE_SMALL: Final = 0.25
VAL_RISE_EARLY: Final = 2.0
"""Half as much again is a jump. A quarter is one if it comes back, and so is three times as much while only a few
evaluations say what is usual."""
VAL_SIGMAS: Final = 8.0
VAL_ABOVE_ALL: Final = 0.25
VAL_ABOVE_ALL_SMALL: Final = 0.1
"""Some validation losses jump all the time: then a jump has to be far outside of that, and above the recent ones."""
VAL_BACK_SHARE: Final = 0.3
VAL_SPIKE_LONGEST: Final = 5
"""What stays up for longer is a new level, not a spike."""
TRAIN_NOW: Final = 3
VAL_NOISE_WINDOW: Final = 20
OVERFIT_RISE: Final = 0.08
"""Less than this is within what one choice of validation data or another would make."""
OVERFIT_AROUND: Final = 3
"""The lowest of many noisy values is low by luck; the middle of three in a row is so by one deviation or two."""
OVERFIT_EVIDENCE: Final = 4.4
OVERFIT_PER_FALL: Final = 2.0
OVERFIT_MOST_OF_TRAIN: Final = 4.0
LEAST_VAL_NOISE: Final = 1e-3
"""The evidence is the rise in units of the noise, plus twice the logarithm of how many times lower the training loss
is: a rise while the training loss stays may be a bad patch that heals, one while it falls seldom does."""
OVERFIT_LEAST_SIGMAS: Final = 1.0
"""A rise within the noise says nothing, however far the training loss fell."""
OVERFIT_CLEAR_EVIDENCE: Final = 6.0
OVERFIT_CLEAR_RISE: Final = 0.11
"""With this much evidence a smaller rise counts, and one evaluation less."""
OVERFIT_LONG: Final = 20
OVERFIT_EVIDENCE_OF_MANY: Final = 3.4
"""Twenty evaluations above the best say more than four: less evidence is enough."""
OVERFIT_NOISE_WINDOW: Final = 60
OVERFIT_MIDDLE_OF: Final = 7
OVERFIT_CONFIRM: Final = 4
OVERFIT_CONFIRM_UNSTEADY: Final = 6
OVERFIT_DIP: Final = 0.1
"""Four evaluations that climb steadily, or six that do not: a validation loss wanders most when it is young."""
OVERFIT_CONFIRM_SHARE: Final = 0.3
"""And a third of the evaluations that it took to the best one: long runs have long bad patches that heal."""
OVERFIT_BACK: Final = 0.3
OVERFIT_TRAIN_SLACK: Final = 0.02
"""Where the training loss has risen too, the run is unstable, which is another finding."""
NOTHING_LEFT_OF_VAL: Final = 1e-3

# ---------------------------------------------------------------- NaN and infinity

INFINITE_NORMS_IN_A_ROW: Final = 3
"""While an fp16 loss scale is being adjusted, single infinite norms occur; three in a row do not."""
PROBES_APART: Final = 30
"""Two single ones within so many records: a scale that has found its range overflows once in two thousand steps."""
FINITE_AGAIN: Final = 3
"""Records with a number again before a NaN counts as over."""
METRICS_WATCHED_FOR_NAN: Final = 20
"""Other metrics whose NaN is an incident of its own; the first ones are enough."""

# ---------------------------------------------------------------- speed, machine, learning rate, ranks

SPEED_BLOCK: Final = 10
"""Records that make one look at the speed: their median passes over the long steps of evaluations and checkpoints."""
SPEED_WARM_UP_BLOCKS: Final = 2
"""Looks left out at the start: compilation, caches and loader workers make the first records slow, or fast."""
SPEED_BLOCKS: Final = 12
SPEED_FEWEST_BLOCKS: Final = 4
"""Looks that make the usual speed, and how many there must be: a boost of the first forty records is outvoted."""
SPEED_DROP: Final = 0.75
"""A speed below this share of the usual one is a drop: what people notice, and beyond what a busy machine varies by."""
SPEED_BACK: Final = 0.85
"""A speed above this share is the usual one again: between the two, nothing opens and nothing closes."""
SPEED_BEFORE_DROP: Final = 0.9
"""One of the two looks before a drop is at least this share of the usual speed: what sinks slowly has a schedule."""
SPEED_LOOKS: Final = 2
SPEED_LOOKS_IF_NOISY: Final = 6
"""Looks in a row that confirm a drop: twenty records, or sixty where the speed varies so much that chance gives two."""
SPEED_NOISE: Final = 4.0
"""Chance gives a look that many deviations below the level once in thirty thousand."""
SPEED_LASTING_BLOCKS: Final = 12
SPEED_LASTING_DROP: Final = 0.85
"""A smaller drop is one too where 120 records before and 120 after it leave no doubt: it adds up all the same."""
SPEED_SLOW_DECLINE: Final = 0.7
"""A speed that sank slowly has lost more than one that fell: a schedule may be the reason."""
SPEED_LASTING_STEADY: Final = 0.05
"""How far the level may move within either of them; what moves further is on its way, as by a schedule."""
SPEED_FEW: Final = (16, 48, 120)
SPEED_LONG_RECORD_S: Final = 20.0
"""A run with so few records is judged record by record, from the first of these on to the second, or to the third if a
record takes this long, as one for each epoch does: a fast start of forty short records is outvoted later."""
SPEED_FEW_BEFORE: Final = 0.4
SPEED_FEW_AFTER: Final = 0.3
"""Its first and last part: the level before the drop and the one that stays, whatever is between them."""
SPEED_FEW_LAST_S: Final = 60.0
"""A slow part that is over sooner may be a checkpoint; where records have no time, it is not known."""
SPEED_SHORTEST_STEP_S: Final = 1e-3
"""Where only the step time is logged and the usual one is below this, it is the machine's timers and scheduler that
vary: a loop that does next to nothing is a test or a toy, and loses nothing that matters."""
SPEED_STRIDE: Final = 1.5
"""Records so many times further apart, or closer, are other records: pauses between steps weigh differently in them."""
OTHERS_LOOKS: Final = 12
OTHERS_FEWEST: Final = 3
"""Samples of the machine before a drop and after it that say whether other programs came: a minute of a live run."""
OTHERS_CPU_PCT: Final = 10.0
OTHERS_BUSY_PCT: Final = 80.0
"""What they use more of all processors, and how busy these are: where cores are free, none is taken from a run."""
OTHERS_GPU_GB: Final = 1.0
"""GPU memory that they hold more: less than this may be buffers of the run's own libraries."""
DATA_WINDOW: Final = 50
DATA_FEWEST: Final = 20
"""Records whose median is the share of waiting: the slow first batches of an epoch do not move it."""
DATA_SHARE: Final = 0.3
DATA_SHARE_OVER: Final = 0.2
"""Waiting for this share of a step makes a run 40 % longer; below the second share it is not worth the trouble."""
GPU_STEPS: Final = 60
"""Steps with samples of the GPU, whose means are judged: five minutes of a live run, a minute of a GPU trace."""
GPU_FEWEST_STEPS: Final = 12
GPU_LONG_S: Final = 300.0
"""Fewer steps are enough if they cover five minutes: some sample once a minute, and some steps take as long."""
GPU_HELD_MIB: Final = 1024.0
GPU_HELD_SHARE: Final = 0.25
"""A GPU that does nothing for five minutes counts if its memory is held: this much, and this share of the most."""
GPU_BUSY_PCT: Final = 50.0
GPU_BUSY_AGAIN_PCT: Final = 60.0
"""Below the first, a GPU costs twice what it does; above the second it does so no longer."""
GPU_WORKING_PCT: Final = 10.0
GPU_WORKING_STEPS: Final = 10
"""The start-up is over when the mean of that many steps is above this: single kernels run while a model is loaded."""
GPU_NOTHING_PCT: Final = 1.0
"""A GPU this idle has not begun, has ended, is not in use, or is logged as a fraction: it counts once work follows."""
GPU_PAUSE: Final = 3.0
"""A step that takes that many times the usual number of samples is an evaluation, a checkpoint or a stall."""
MEMORY_BLOCK: Final = 10
MEMORY_BLOCKS: Final = 24
"""Samples in the smallest block, whose lowest value counts, and how many blocks in a row are judged, in two halves."""
MEMORY_SAMPLE_S: Final = 1.0
"""How often the logger samples the machine; step records in between carry the same numbers."""
MEMORY_SCALES: Final = 4
MEMORY_COARSER: Final = 4
"""Blocks are also joined four by four, three times: a leak shows in 240 samples, or in 960, 3,840 or 15,360."""
MEMORY_WARM_UP: Final = 100
"""Samples and steps left out: caches, loader workers and allocators fill up; 90 steps for 12 GB were published once."""
MEMORY_TREND: Final = 3.6
"""Mann-Kendall's z of both halves of the blocks: nearly each one above all before it, which a few jumps do not give."""
MEMORY_STEADY: Final = 0.9
"""The later half grows at least this share as fast as the earlier one, and as everything since the warm-up:
what fills up slows down, a leak does not."""
RSS_GROWTH_MIB: Final = 1024.0
GPU_GROWTH_MIB: Final = 256.0
MEMORY_GROWTH_SHARE: Final = 0.05
"""Growth in MiB, and as a share of the level, below which nothing is reported: mapped data and caches need as much."""
MEMORY_STOPPED: Final = 0.2
"""Growth below this share of what it was when it was noticed: it has stopped."""
STALL_BEFORE_FIRST_PAUSE_S: Final = 300.0
"""So long where no evaluation, checkpoint or sample has been seen yet: the record of one comes when it is over."""
STALL_PAUSES: Final = 3.0
"""So many times as long as the longest pause that such a record explained."""
STALL_LOUD_S: Final = 300.0
"""A shorter one is listed but not alarming."""
STALL_INTERVALS: Final = 10
"""Intervals between step records that make the usual one."""
LR_ZERO_RECORDS: Final = 20
"""Records with a learning rate of exactly 0: restarts and the first step of a warm-up are 0 at one record."""
LR_NOTHING: Final = 5e-10
LR_NOTHING_SHARE: Final = 1e-4
"""A rate that is as good as 0: fp32 does not resolve such a step of a weight of 0.02, and no schedule falls to a
ten-thousandth of its peak before it is over."""
LR_DECAYED: Final = 0.05
"""A learning rate below this share of its peak before it became 0 has decayed: the schedule's end, as it should be."""
LR_ZERO_AFTER_DECAY: Final = 0.5
LR_ZERO_AFTER_DECAY_RECORDS: Final = 100
"""Records at 0 after a decay, as a share of those before and in number: the schedule was made for a shorter run."""
NOT_FALLEN: Final = 0.98
"""A loss that fell below this share is still being learnt: a logged learning rate of 0 may be 2e-5, rounded."""
LR_BLOCK: Final = 10
"""Records whose median is the level of the loss while the rate is 0."""
VANISHED_SHARE: Final = 1e-4
"""A gradient norm of this share of the early ones: clipping and decay do not do that."""
VANISHED_RECORDS: Final = 20
"""In a row: a batch without a target, or a group without advantage, gives single zeros."""
VANISHED_EARLY: Final = 50
"""The first records, which say what gradient norm and loss are usual."""
SOLVED_SHARE: Final = 0.05
"""A loss below this share of the early ones is solved: its gradients vanish rightly."""
SCALE_FALL: Final = 8.0
SCALE_WINDOW: Final = 50
"""Three halvings net of doublings within that many records: a healthy scale goes up and down by one or two."""
SCALE_PROBE_RECORDS: Final = 50
"""The first records, in which a scale that starts too high finds its range."""
SCALE_BOTTOM: Final = 1.0
"""A scale of 1 or less no longer helps anything."""
SKIPPED: Final = 3
SKIPPED_WINDOW: Final = 20
"""Infinite gradient norms among the last ones: a probe of the scale gives one in two thousand steps."""
SLOW_RANK: Final = 1.2
SLOW_RANK_OVER: Final = 1.1
"""A step over what it would take if the rank were like the median of the others: all of them wait for the slowest."""
RANK_WINDOW: Final = 20
RANK_CHECK_EVERY: Final = 10
"""Records of a rank that make its median, and how many lie between two looks; three looks in a row confirm."""
RANK_LOOKS: Final = 3
SLOW_PASS: Final = 1.06
SLOW_PASS_OVER: Final = 1.03
MUCH_SLOWER_PASS: Final = 1.15
SLOW_PASS_SHARE: Final = 0.01
STEADY_WINDOW: Final = 60
"""The forward pass of one rank over that of the others, where they wait for it in the backward pass, by the medians of
so many records unless it is much slower; and how much of a step that is at least."""
SLOW_SAVE: Final = 2.0
SLOW_SAVE_SHARE: Final = 0.02
"""A checkpoint of one rank over that of the others, and how much of the time between two they wait for it."""
SILENT_RANK_S: Final = 60.0
SILENT_RANK_TIMES: Final = 10.0
SILENT_RANK_LONGEST: Final = 3.0
"""A rank is silent after a minute, if that is ten times its usual pause between records and three times the longest."""
SILENT_RANK_RECORDS: Final = 5
"""Below that many records the pace of a rank is unknown: it may still be starting."""
DEAD_RANK_S: Final = 1.5
"""A process that is gone without an end record, or stopped, is reported once its file has not grown for this long."""

# ---------------------------------------------------------------- reinforcement learning

RL_BLOCK: Final = 5
RL_FIRST_BLOCKS: Final = 8
RL_LOOKS: Final = 3
"""Records of a block, blocks that say what is usual, and how many in a row confirm: rewards vary a lot."""
RL_KL_TIMES: Final = 5.0
RL_KL_LEAST: Final = 0.1
"""A divergence that grows in a straight line is at twice the median of all before it, one that grows with the square
at four times. Below the second, the policy is still close to its reference, whatever the ratio."""
RL_LENGTH_TIMES: Final = 2.5
"""Completions that grow in a straight line from nothing reach twice the median of those before."""
RL_RISE_SIGMAS: Final = 3.0
RL_LEAST_RISE: Final = 0.05
"""The reward has risen where it is clear of its noise, and by a twentieth: a falling one is another fault."""
ENTROPY_BLOCK: Final = 10
ENTROPY_LOOKS: Final = 2
ENTROPY_GONE: Final = 0.05
ENTROPY_BACK: Final = 0.2
"""Healthy policies keep a tenth of their first entropy or more; a twentieth leaves nothing to explore with."""

# ---------------------------------------------------------------- the start of a run, epochs, adapters, half precision

LEAK_RECORDS: Final = 30
LEAK_SHARE: Final = 0.01
LEAK_AT_MOST: Final = 0.05
"""A hundredth of the first loss within thirty records, and never above a twentieth in the next thirty."""
LEAK_OF_PLAN: Final = 0.01
"""So early in the planned steps that no real task is learnt by then."""
LEAK_ZEROS: Final = 20
"""Losses of exactly 0 from the first record on: a trainer that fills a buffer logs fewer."""
LORA_ZEROS: Final = 20
"""Zeros in a row: rounding does not give them, and a batch without a target gives single ones."""
REPEATED_FEWEST: Final = 16
REPEATED_MOST: Final = 512
"""Records of an epoch that can be compared, and how many of a longer one are."""
REPEATED_ALIKE: Final = 0.7
REPEATED_STILL: Final = 0.5
REPEATED_EPOCHS: Final = 2
"""The correlation of two epochs record by record, twice in a row. Shuffled data gives 0, with a spread of 0.27 for the
shortest epochs: 0.7 by chance, twice, does not happen."""
REPEATED_EDGE: Final = 8
REPEATED_STAIR: Final = 0.1
REPEATED_SIGMAS: Final = 4.0
"""Records at either side of an epoch's end, and the fall between them that is a step of a staircase."""
ZERO_SHARE: Final = 0.5
ZERO_SHARE_TIMES: Final = 2.0
ZERO_SHARE_RECORDS: Final = 20
ZERO_SHARE_LOOKS: Final = 2
"""Half of the gradients, and twice the share at the start: embeddings have many zeros that mean nothing."""

# ---------------------------------------------------------------- the time limit of a job

LIMIT_LOOKS_OF_PLAN: Final = 1000
LIMIT_FEWEST_LOOKS: Final = 20
LIMIT_SEEN: Final = 0.1
"""A thousand looks at the pace in the planned steps. After twenty, and a tenth of the time, caches are filled."""
LIMIT_LOOKS: Final = 3
LIMIT_LEAST_S: Final = 60.0
LIMIT_SHARE: Final = 0.1
"""How late it must be, three times in a row: a minute, a tenth of what is left, and the longest pause so far."""
LIMIT_GRACE_S: Final = 600.0
LIMIT_FARTHEST_S: Final = 1e11
"""Who still logs so long after the limit was given more time. Larger values than the second are not times."""

# ---------------------------------------------------------------- how sure a finding is

CLEAR_RATIO: Final = 5.0
"""A loss at five times its level is never noise: on labelled runs each of them was a spike or a divergence."""
CONFIDENCE_TO_WARN: Final = 0.5
"""A finding that is more likely wrong than right is nothing to alert anyone with."""
