"""The U-Net of a denoising diffusion model for 32x32 colour images.

Ho, Jain and Abbeel, "Denoising Diffusion Probabilistic Models" (2020), the CIFAR-10 model
without dropout.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.zoo import blocks, common

IMAGE_SIZE = 32
WIDTH = 128
MULTIPLIERS = (1, 2, 2, 2)
RESIDUAL_BLOCKS = 2
ATTENTION_LEVEL = 1
TIMESTEPS = 1000


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with group normalization, the time embedding added between them.

    Attributes:
      features: number of output channels.
    """

    features: int

    @nn.compact
    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        """Maps `x [batch, height, width, channels]`, `time [batch, n]` to `features` channels."""
        y = nn.Conv(self.features, (3, 3), name="conv1")(nn.swish(nn.GroupNorm(name="norm1")(x)))
        y = y + nn.Dense(self.features, name="time")(nn.swish(time))[:, None, None]
        y = nn.Conv(self.features, (3, 3), name="conv2")(nn.swish(nn.GroupNorm(name="norm2")(y)))
        if x.shape[-1] != self.features:
            x = nn.Conv(self.features, (1, 1), name="shortcut")(x)
        return x + y


class SpatialAttention(nn.Module):
    """Self-attention of one head over the positions of an image, with a residual connection."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, height, width, channels]` to the same shape."""
        y = nn.GroupNorm(name="norm")(x).reshape(x.shape[0], -1, x.shape[-1])
        return x + blocks.MultiHeadAttention(1, name="attention")(y).reshape(x.shape)


class UNet(nn.Module):
    """A convolutional encoder and decoder with skip connections at every block.

    Attributes:
      width: channels at the finest resolution, a multiple of 32.
      multipliers: channels of each resolution, from the finest, in units of `width`; each
        resolution is half the one before it.
      attention_level: index of the resolution whose blocks attend, 16x16 in images of 32x32.
    """

    width: int = WIDTH
    multipliers: tuple[int, ...] = MULTIPLIERS
    attention_level: int = ATTENTION_LEVEL

    @nn.compact
    def __call__(self, inputs: dict[str, jax.Array]) -> jax.Array:
        """Maps noisy `images [batch, height, width, 3]` and `timesteps [batch]` to the noise."""
        x = inputs["images"]
        time = blocks.sinusoids(inputs["timesteps"], self.width).astype(x.dtype)
        time = nn.Dense(4 * self.width, name="time_in")(time)
        time = nn.Dense(4 * self.width, name="time_out")(nn.swish(time))

        def block(x: jax.Array, level: int) -> jax.Array:
            x = ResidualBlock(self.width * self.multipliers[level])(x, time)
            return SpatialAttention()(x) if level == self.attention_level else x

        x = nn.Conv(self.width, (3, 3), name="stem")(x)
        skips = [x]
        last = len(self.multipliers) - 1
        for level in range(last + 1):
            for _ in range(RESIDUAL_BLOCKS):
                x = block(x, level)
                skips.append(x)
            if level < last:
                x = nn.Conv(x.shape[-1], (3, 3), strides=(2, 2), name=f"down{level}")(x)
                skips.append(x)
        x = ResidualBlock(x.shape[-1], name="middle1")(x, time)
        x = SpatialAttention(name="middle_attention")(x)
        x = ResidualBlock(x.shape[-1], name="middle2")(x, time)
        for level in range(last, -1, -1):
            for _ in range(RESIDUAL_BLOCKS + 1):
                x = block(jnp.concatenate([x, skips.pop()], axis=-1), level)
            if level > 0:
                x = x.repeat(2, axis=1).repeat(2, axis=2)
                x = nn.Conv(x.shape[-1], (3, 3), name=f"up{level}")(x)
        return nn.Conv(3, (3, 3), name="head")(nn.swish(nn.GroupNorm(name="norm")(x)))


def diffusion_batches(image_size: int):
    """Returns a `make_batch` of images with noise in them, as the forward process leaves them.

    Its `inputs` are float32 `images [batch, image_size, image_size, 3]` and int32
    `timesteps [batch]`, its `labels` the noise that was added, shaped as the images. The
    variance of a step rises linearly from 1e-4 to 0.02, as in the paper.
    """

    def make_batch(key: jax.Array, batch_size: int) -> common.Batch:
        image_key, noise_key, time_key = jax.random.split(key, 3)
        shape = (batch_size, image_size, image_size, 3)
        images = jax.random.uniform(image_key, shape, jnp.float32, -1, 1)
        noise = jax.random.normal(noise_key, shape, jnp.float32)
        timesteps = jax.random.randint(time_key, (batch_size,), 0, TIMESTEPS, jnp.int32)
        kept = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, TIMESTEPS))[timesteps, None, None, None]
        noisy = jnp.sqrt(kept) * images + jnp.sqrt(1 - kept) * noise
        return {"inputs": {"images": noisy, "timesteps": timesteps}, "labels": noise}

    return make_batch


def network(
    image_size: int = IMAGE_SIZE, *, width: int = WIDTH, multipliers: tuple[int, ...] = MULTIPLIERS
) -> common.Network:
    """A U-Net that learns the noise of synthetic `image_size` x `image_size` x 3 images."""
    module = UNet(width, multipliers)
    return common.linen_network(module, diffusion_batches(image_size), common.squared_error)


unet = common.Model(network)
"""The U-Net in the CIFAR-10 shape, 32x32x3 images."""
