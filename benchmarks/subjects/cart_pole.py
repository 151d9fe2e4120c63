"""REINFORCE on a cart-pole of its own: episodes, no DataLoader, a tiny policy."""

import math
import random
import sys

import torch
from torch import nn

EPISODES = int(sys.argv[1]) if len(sys.argv) > 1 else 1500


class CartPole:
    def reset(self):
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        return self.state

    def step(self, action):
        x, speed, angle, turn = self.state
        force = 10.0 if action else -10.0
        push = (force + 0.05 * turn**2 * math.sin(angle)) / 1.1
        bent = (9.8 * math.sin(angle) - math.cos(angle) * push) / (
            0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1)
        )
        pulled = push - 0.05 * bent * math.cos(angle) / 1.1
        self.state = [
            x + 0.02 * speed,
            speed + 0.02 * pulled,
            angle + 0.02 * turn,
            turn + 0.02 * bent,
        ]
        return self.state, abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21


random.seed(543)
torch.manual_seed(543)
policy = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
env = CartPole()
running = 10.0
for episode in range(EPISODES):
    state, log_probs, rewards = env.reset(), [], []
    for _ in range(200):
        probs = torch.softmax(policy(torch.tensor(state).unsqueeze(0)), dim=1)
        choice = torch.distributions.Categorical(probs)
        action = choice.sample()
        log_probs.append(choice.log_prob(action))
        state, done = env.step(action.item())
        rewards.append(1.0)
        if done:
            break
    value, returns = 0.0, []
    for reward in reversed(rewards):
        value = reward + 0.99 * value
        returns.insert(0, value)
    goal = torch.tensor(returns)
    goal = (goal - goal.mean()) / (goal.std(unbiased=False) + 1e-8)
    optimizer.zero_grad()
    loss = torch.cat([-log * value for log, value in zip(log_probs, goal, strict=True)]).sum()
    loss.backward()
    optimizer.step()
    running = 0.05 * sum(rewards) + 0.95 * running
    if episode % 100 == 0:
        print(f"episode {episode}: average reward {running:.1f}")
