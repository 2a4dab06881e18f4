"""A script in the style of CleanRL's; the import is the only line that differs."""

import argparse
import time

import torch
from torch.utils.tensorboard import SummaryWriter

args = argparse.Namespace(env_id="CartPole-v1", seed=1, learning_rate=1e-2, track=True, capture_video=False)
run_name = f"{args.env_id}__{args.seed}"
if args.track:
    import toolkit.telemetry.compat.wandb as wandb

    wandb.init(
        project="cleanRL",
        entity=None,
        sync_tensorboard=True,
        config=vars(args),
        name=run_name,
        monitor_gym=True,
        save_code=True,
    )
writer = SummaryWriter(f"runs/{run_name}")
writer.add_text(
    "hyperparameters",
    "|param|value|\n|-|-|\n" + "\n".join(f"|{key}|{value}|" for key, value in vars(args).items()),
)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
start_time = time.time()
for update in range(1, 6):
    global_step = update * 128
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    writer.add_scalar("charts/episodic_return", 20.0 * update, global_step)
    writer.add_scalar("charts/learning_rate", optimizer.param_groups[0]["lr"], global_step)
    writer.add_scalar("losses/value_loss", loss.item(), global_step)
    writer.add_scalar("charts/SPS", int(global_step / (time.time() - start_time + 1)), global_step)
writer.close()
