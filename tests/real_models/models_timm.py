"""Random models of timm on images of 32 x 32 pixels."""

import real_models.vision  # noqa: F401  # isort: skip  (before torchvision, which timm imports)
import numpy as np
import timm
import torch
from real_models.engines import Torch
from real_models.harness import Case, Program

ENGINE = Torch


def program_of(name, **options):
    """Return a program of a model in evaluation mode on three images."""
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=5, **options).double().eval()
    x = np.random.default_rng(0).standard_normal((3, 3, 32, 32))
    return Program(lambda _, x: model(x), x, parameters=list(model.parameters()))


def case(title, name, **options):
    """Return the case of a model."""
    return Case("timm", title, lambda: program_of(name, **options))


SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
CASES = [
    case("ViT", "vit_tiny_patch16_224", **SMALL),
    case("DeiT", "deit_tiny_distilled_patch16_224", **SMALL),
    case("ResNet-18", "resnet18"),
    case("ConvNeXt", "convnext_atto"),
    case("EfficientNet", "efficientnet_b0"),
    case("MobileNetV3", "mobilenetv3_small_050"),
    case("RegNet", "regnetx_002"),
    case("ResMLP", "resmlp_12_224", img_size=32),
    case(
        "Swin",
        "swin_tiny_patch4_window7_224",
        img_size=32,
        window_size=4,
        embed_dim=24,
        depths=(1, 1),
        num_heads=(2, 2),
    ),
    case("GhostNet", "ghostnet_050"),
    case("ECA-ResNet", "ecaresnet26t"),
    case("CaiT", "cait_xxs24_224", **SMALL),
]
