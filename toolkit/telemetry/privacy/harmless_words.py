"""Words in the names of files and models that reveal nothing about anyone."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final


@lru_cache(maxsize=4096)
def is_plain(name: str) -> bool:
    """Return whether `name` consists only of ordinary words of training and short numbers.

    `train_lora.py`, `step_1000.safetensors` and `UNet2DModel` do; a client's or a person's name does not.
    """
    if not name.isascii() or not _ALLOWED.fullmatch(name):
        return False
    pieces = _PIECE.findall(name)
    return bool(pieces) and all(
        len(piece) <= _LONGEST_NUMBER if piece.isdigit() else piece.lower() in PLAIN_WORDS for piece in pieces
    )


_ALLOWED = re.compile(r"[A-Za-z0-9._=+-]{1,120}")
_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_LONGEST_NUMBER: Final = 8

_EXTENSIONS: Final = """
arrow avi bin bmp bz2 c cache cfg ckpt cpp csv cu cuh db dll flac gguf gif gz h h5 html idx ini ipynb jpeg
jpg js json jsonl lock log md mkv mov mp3 mp4 msgpack npy npz onnx parquet pdf pickle pkl png pt pth pxd py
pyc pyd pyi pyx safetensors sh so sqlite svg tar tfevents tgz toml ts tsv txt wav webm webp whl xml yaml yml
zip zst
"""
_WORDS: Final = """
a aarch about absolute accelerate accum accumulate accumulation accuracy activation active adafactor adam
adamw adapter adapters advantage advantages after again agent alias all allocated alpha amd amp an and api
app append application apps arch architecture architectures arg args arm array as assert asset assets
assistant async at atom attention attn auc audio auth auto autoencoder aux average avg axolotl b back
backbone backend backup backward bar base baseline batch batches be before begin bench benchmark bert best
beta betas better between bf bias big binary bit bits bleu blob block blocks bool bot both box boxes branch
bucket buckets buffer build builder builtins busy by c cached caching call callback callbacks can caption captions
causal cause center chain change changed char check checkpoint checkpoints checks child chosen chunk chunks
class classes classification classifier clean cli click client clip clipping clock close cloud cls cluster
code collate color column columns command commit common compare completion completions compute concat cond
conditional conditioning conf config configs configuration connection constant constants container content
context control controlnet conv converter copy core corrected cosine cosmos cost count cpu create created
critical cross cublas cuda cudnn current curve custom customer cut cycle d daemon dashboard data dataloader
dataset datasets date ddp debug decay decoder deep deepspeed default delete demo dense deploy depth detected
dev develop device devices dice diff diffusers diffusion dim dir direction directory disk dist distributed
do doc docker docs document documents done dora double down download downloads dpo draft dreambooth drive
driver drop dropout dropped dtype dump dumps e each early edit effective elapsed ema embed embedding
embeddings embeds empty enabled encode encoder end engine entity entropy entry env environment envs eos
epoch epochs eps epsilon error errors estimate eta etc eval evaluate evaluation event events every example
examples exec execute exp experiment experiments export exporter extra f face factor fail failed false fast
feature features ff fid field fields file files final finding findings fine finetune finetuned finetuning
finish finished finite first fixed flag flash flax float flow flush flux fold folder follow for force fork
form format forward fp frame frames free frequency from fsdp full function functional g gate gb gemma gen
general generate generated generation generator get git global good gpt gpu gpus grad gradient gradients
graph greedy group grpo guard guest guidance guide h half hand handler hang hard hash head header heads
health help helper helpers hidden high histogram histograms history home hook hooks host hot hour hours how
hub huggingface human hunyuan hybrid hyper i ia id idle ids if image images img import in inc index inf
inference info init initial inner input inputs instance instruct int integration intel internal interval
into io iou is iso it item items iter iteration iterations its job jobs join jpg jump k kb kernel key keys
kind kl kolors kto l label labels lambda lang language large last latent latents latest launch launcher
layer layernorm layers layout lazy leaf learn learning least ledger len length level lib library libs light
lightning limit line linear linux lion list lists live llama llm load loaded loader local localhost lock
logger loggers logging logits logps logs loha lokr long look loop lora loss losses lost low lower lr ltx
lycoris m machine main make manager manifest many map mapping margin margins mask masks master match math
matrix max mb mean media medium mem memory merge merged message messages meta metadata method metric metrics
mid middle min mini minimal minute minutes mirror misc mistral mix mixed mixin mixture mlp mnist mode model
modeling models module modules momentum monitor more most ms multi my n name names nan narrator nats nccl
net network new newest next nn no node nodes noise non none norm normal normalize normalized not note
notebook notebooks notes null num number numbers numpy nvidia o object of off offline offload ok old oldest
on one only onnx open ops opt optim optimizer optimizers option options or orig original orpo other others
out outer output outputs over overview own p pack package packages packed pad padding page pages pair pairs
panel parallel param parameter parameters params parent parser part parts pass past patch path paths peak
peft per perf performance perplexity phase pid pip pipe pipeline pixart pixel plan platform play plot plots
plugin plus point pool pooler pooling pos position post power ppl ppo precision pred predict prediction
predictions prefix preprocess pretrain pretrained pretraining preview previous print prior prob process
processed processing processor prod profile profiler profiling program progress proj project projection
projects prompt prompts proxy psnr public push python q qlora quality quant quantize query queue quick qwen
r rank ranks rate rates ratio raw read reader readme real reason reasoning rec recall record recorder
records recovery recurrent reference refiner region register registry regression regularization rejected
release reload remote repair repeat replay repo report reports repository request requests requirements res
research reserved reset residual resize resnet resolution resolved resource resources response rest restart restarts
result results resume reward rewards right rl rlhf rms rmsprop rng robust role roles root rope rotary rouge
round row rows rslora rss run runner running runs runtime s safe safety sample sampled sampler samplers
samples sampling sana save saved saver scalar scale scaled scaler scaling scan schedule scheduler schema
scope score scores scratch script scripts sd sdxl search sec second seconds section seed seen segment select
self send sentence seq sequence series server serving session sessions set sets settings setup severity sft
sgd shape shapes shard sharded shards share shared shift short should show shuffle side sigma sign signal
simple single size sizes skip slow small smoke smooth snapshot snapshots socket soft some sort source space
spaces span spans speaker spec special speed spike split splits src ssim stable stack stage staging stall
standard start started starting startup stat state states static stats status std stderr stdin stdout step
steps stop stopped storage store stream strict string style sub submit success suffix sum summary super
support switch sync system systems t tab table tables tag tags target targets task tasks teacher telemetry
temp temperature template templates tensor tensorboard tensors term test tester testing tests text texts
than that the then there this thread threads three threshold through throughput time timer times timing tiny
tmp to token tokenization tokenize tokenized tokenizer tokenizers tokens tool toolkit tools top torch total
trace train trainable trained trainer trainers training transform transformer transformers transforms tree
trial trigger trl true tune tuned tuner tuning turbo tutorial two type types u ui uint under unencodable
unet unit units unk unload up update updated upload upper upscale use user users using util utility utils v
vae val valid validate validation value values var variance vec vector ver version versions video videos
view viewer views vision visual visualize vit vocab volume w wait wall wan wandb warm warmup warning
warnings was watch web weight weighted weights wer what when where which while white who width will window
windows with without word words work worker workers workflow working workspace world wrap wrapper write
writer x xl y year yes you your z zero zeros
"""

_METHODS: Final = """
adadelta adagrad adalora adamax ademamix adopt ai annealing anyprecision automagic bfloat bnb boft chained
chroma condition cohere cyclic dadapt deepseek dit exponential flex fnuz fused galore hf hidream inverse kontext
lamb lars lbfgs lm ln locon lumina mamba mixtral moe mps muon nadam nf npu oft olmo paged phi piecewise plateau
polynomial prodigy prodigyopt pytorch qfloat qint radam reduce rloo roberta rocm sequential shampoo sqrt tf vl
whisper xla xpu zimage
"""

PLAIN_WORDS: Final = frozenset(f"{_EXTENSIONS} {_WORDS} {_METHODS}".split())
