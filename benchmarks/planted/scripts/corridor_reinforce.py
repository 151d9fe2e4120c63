"""REINFORCE: many walkers at once learn to reach the end of a windy corridor."""

import torch
from torch import nn
from torch.distributions import Categorical

WALKERS, HORIZON, GOAL = 256, 16, 6.0


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.action = nn.Linear(128, 3)
        self.value = nn.Linear(128, 1)

    def forward(self, state):
        h = self.body(state)
        return Categorical(logits=self.action(h)), self.value(h).squeeze(-1)


@torch.no_grad()
def walk(policy):
    """All walkers take HORIZON steps; returns states, actions and discounted rewards."""
    place = torch.zeros(WALKERS)
    speed = torch.zeros(WALKERS)
    wind = torch.randn(WALKERS) * 0.2
    states, actions, rewards = [], [], []
    for _ in range(HORIZON):
        state = torch.stack([place / GOAL, speed, wind], 1)
        action = policy(state)[0].sample()
        speed = 0.8 * speed + 0.3 * (action - 1) + wind * 0.5
        place = place + speed
        states.append(state)
        actions.append(action)
        rewards.append(-(place - GOAL).abs() / GOAL)
    gains = torch.stack(rewards)
    for t in range(HORIZON - 2, -1, -1):
        gains[t] += 0.95 * gains[t + 1]
    return torch.cat(states), torch.cat(actions), gains.flatten()


torch.manual_seed(71)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
for iteration in range(400):
    states, actions, gains = walk(policy)
    choice, value = policy(states)
    advantage = gains - value.detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    loss = -(choice.log_prob(actions) * advantage).mean()
    loss = loss + 0.5 * nn.functional.mse_loss(value, gains) - 0.01 * choice.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if iteration % 50 == 0:
        print(f"iteration {iteration}: return {gains[:WALKERS].mean().item():.3f}")
