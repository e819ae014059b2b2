"""The autograd function of the fused ops."""

from typing import Any

import torch


class Fused(torch.autograd.Function):
    """A fused op: y = forward(x, w, world, policy, order), and gradient(grad, x, w, world) of each operand."""

    @staticmethod
    def forward(context: Any, x, w, world, policy, order, forward, gradients):  # type: ignore[override]
        context.save_for_backward(x, w)
        context.world, context.gradients = world, gradients
        return forward(x, w, world, policy, order)

    @staticmethod
    def backward(context: Any, grad):  # type: ignore[override]
        grad = grad.contiguous()
        needed = zip(context.gradients, context.needs_input_grad, strict=False)
        wanted = [gradient(grad, *context.saved_tensors, context.world) if need else None for gradient, need in needed]
        return *wanted, *[None] * 5
