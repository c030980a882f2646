"""What Megatron-Core's and Megatron-Bridge's models are made of where there is no GPU: modules of Transformer Engine and
mamba_ssm with their parameters and extra states, which compute nothing. install() puts them in place of the packages,
before Megatron is imported; stub_the_rest() lets Bridge import what no model of it on a CPU uses."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types

import torch
from torch.nn import Module, Parameter


class WithExtraState(Module):
    def get_extra_state(self):
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state):
        pass

    def parameter(self, name, *shape, dtype=None):
        self.register_parameter(name, Parameter(torch.zeros(shape, dtype=dtype)))


class RMSNorm(WithExtraState):
    names = ("weight",)

    def __init__(self, normalized_shape, eps=1e-5, params_dtype=None, **_):
        super().__init__()
        for name in self.names:
            self.parameter(name, normalized_shape, dtype=params_dtype)


class LayerNorm(RMSNorm):
    names = ("weight", "bias")


def part_of(out_features, in_features, tp_size, parallel_mode):
    column, row = parallel_mode == "column", parallel_mode == "row"
    return out_features // (tp_size if column else 1), in_features // (tp_size if row else 1)


class Linear(WithExtraState):
    def __init__(self, in_features, out_features, tp_size=1, bias=True, parallel_mode=None, params_dtype=None, **_):
        super().__init__()
        shape = part_of(out_features, in_features, tp_size, parallel_mode)
        self.out_features, self.in_features = shape
        self.use_bias, self.parallel_mode = bias, parallel_mode
        self.parameter("weight", *shape, dtype=params_dtype)
        if bias:
            self.parameter("bias", shape[0], dtype=params_dtype)


class LayerNormLinear(Linear):
    def __init__(self, in_features, out_features, normalization="LayerNorm", params_dtype=None, **more):
        super().__init__(in_features, out_features, params_dtype=params_dtype, **more)
        self.parameter("layer_norm_weight", in_features, dtype=params_dtype)
        self.layer_norm_bias = None
        if normalization == "LayerNorm":
            del self.layer_norm_bias
            self.parameter("layer_norm_bias", in_features, dtype=params_dtype)


class GroupedLinear(WithExtraState):
    def __init__(self, num_gemms, in_features, out_features, bias=True, params_dtype=None, tp_size=1,
                 parallel_mode=None, **_):
        super().__init__()
        self.num_gemms, self.use_bias = num_gemms, bias
        self.fp8_meta, self.fp8, self.fp8_calibration = {"fp8_checkpoint": False}, False, False
        shape = part_of(out_features, in_features, tp_size, parallel_mode)
        for i in range(num_gemms):
            self.parameter(f"weight{i}", *shape, dtype=params_dtype)
            if bias:
                self.parameter(f"bias{i}", shape[0], dtype=params_dtype)

    def init_fp8_metadata(self, num_gemms=1):
        pass


class DotProductAttention(WithExtraState):
    def __init__(self, num_attention_heads, kv_channels, tp_size=1, softmax_type="vanilla", **_):
        super().__init__()
        self.softmax_offset = None
        if softmax_type == "learnable":
            del self.softmax_offset
            self.parameter("softmax_offset", num_attention_heads // tp_size, dtype=torch.float32)


class RMSNormGated(Module):
    def __init__(self, hidden_size, eps, group_size, norm_before_gate, device=None, dtype=None):
        super().__init__()
        self.weight = Parameter(torch.zeros(hidden_size, dtype=dtype))


class AnyClass(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class Anything(metaclass=AnyClass):
    """Any class or function that is imported and not used."""

    def __init__(self, *_, **__):
        pass


def any_name(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything


def never_called(*_, **__):
    raise NotImplementedError


PYTORCH = (RMSNorm, LayerNorm, Linear, LayerNormLinear, GroupedLinear, DotProductAttention)
PACKAGES = {
    "transformer_engine": {"__version__": "2.8.0"},
    "transformer_engine.common": {},
    "transformer_engine.common.recipe": {"DelayedScaling": Anything},
    "transformer_engine.pytorch": {kind.__name__: kind for kind in PYTORCH},
    "transformer_engine.pytorch.distributed": {
        "CudaRNGStatesTracker": Anything,
        "activation_recompute_forward": never_called,
        "is_fp8_activation_recompute_enabled": lambda: False,
    },
    "transformer_engine.pytorch.fp8": dict.fromkeys(("FP8GlobalStateManager", "fp8_autocast", "fp8_model_init")),
    "transformer_engine.pytorch.tensor": {"QuantizedTensor": Anything},
    "transformer_engine.pytorch.router": dict.fromkeys(
        ("fused_compute_score_for_moe_aux_loss", "fused_moe_aux_loss", "fused_topk_with_score_function")
    ),
    "fla": {},
    "fla.modules": {},
    "fla.modules.l2norm": {"l2norm": never_called},
    "fla.modules.convolution": {"causal_conv1d": never_called},
    "fla.ops": {},
    "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": never_called},
    "mamba_ssm": {"__version__": "2.2.6"},
    "mamba_ssm.ops": {},
    "mamba_ssm.ops.triton": {},
    "mamba_ssm.ops.triton.layernorm_gated": {"RMSNorm": RMSNormGated},
    "mamba_ssm.ops.triton.ssd_combined": dict.fromkeys(
        ("mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined"), never_called
    ),
}
UNUSED = """causal_conv1d fla mamba_ssm transformer_engine timm open_clip mlflow wandb nvidia_resiliency_ext qwen_vl_utils
    datasets flash_attn modelopt""".split()
# transformers.modeling_attn_mask_utils: gone in 5.24, and Bridge imports it for classes of its own
UNUSED_MODULES = ("megatron.energon", "transformers.modeling_attn_mask_utils")


def install():
    for name, members in PACKAGES.items():
        module = types.ModuleType(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        vars(module).update(members)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in UNUSED or name.startswith(UNUSED_MODULES):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__version__, module.__getattr__ = "0.0.0", any_name
        return module

    def exec_module(self, module):
        pass


def stub_the_rest():
    """After Megatron-Core has been imported, which asks these packages what they have."""
    for name in PACKAGES:
        sys.modules[name].__getattr__ = any_name
    sys.meta_path.append(Stubs())
