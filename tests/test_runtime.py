"""The compiled module as an ``nn.Module``: state, updates, inputs, outputs, calling conventions."""

from __future__ import annotations

import copy
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.export import Dim

from hierpart.build.compiling import compile_model
from hierpart.capture.input_check import InputMismatchError
from hierpart.partition.pipeline import run_line
from hierpart.runtime.flat_function import flatten
from tests.doubles import Double, Wrapping, options_for, same


def compiled(model, args=(), kwargs=None, refuses=("relu",), dynamic_shapes=None, **fields):
    backend = fields.pop("backend", None) or Double("first", refuses=refuses)
    return compile_model(
        model, args, kwargs, dynamic_shapes=dynamic_shapes, options=options_for(backend, **fields)
    )


def same_state(left, right):
    a, b = left.state_dict(), right.state_dict()
    assert list(a) == list(b)
    for name in a:
        same(a[name], b[name])


class Counting(nn.Module):
    """Convolution and batch norm with a counter, a buffer that is not saved, and a literal."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("scale", torch.full((1,), 2.0), persistent=False)

    def forward(self, x, *, shift=None):
        self.count.add_(1)
        y = self.norm(self.conv(x)).relu() * self.scale
        return {"y": y, "count": self.count, "none": None, "size": x.shape[0], "first": x[0]}, (
            torch.tensor([1.0, 2.0]) + shift
        )


@pytest.fixture(scope="module")
def built():
    torch.manual_seed(0)
    model = Counting()
    reference = copy.deepcopy(model)
    module = compiled(
        model, (torch.randn(4, 3, 6, 6),), {"shift": torch.randn(2)},
        dynamic_shapes={"x": {0: Dim("batch", min=2, max=16)}, "shift": None},
    )  # fmt: skip
    return module, model, reference


def test_results_buffers_and_structure_are_the_models(built):
    module, model, reference = built
    for size in (4, 9, 2):
        x, shift = torch.randn(size, 3, 6, 6), torch.randn(2)
        result, expected = module(x, shift=shift), reference(x, shift=shift)
        same(result, expected)
        assert result[0]["count"] is module.count
        assert result[0]["first"].data_ptr() == x.data_ptr()
    same_state(module, reference)
    assert module.count is model.count


def test_state_has_its_original_names_and_is_the_models(built):
    module, model, _ = built
    assert list(module.state_dict()) == list(model.state_dict())
    assert dict(module.named_parameters()).keys() == dict(model.named_parameters()).keys()
    assert {n for n, _ in module.named_buffers()} == {n for n, _ in model.named_buffers()}
    for name, parameter in model.named_parameters():
        assert module.get_parameter(name) is parameter


def test_weights_may_change_in_place_be_loaded_and_be_replaced(built):
    module, _, _ = built
    module, reference = copy.deepcopy(module), Counting()
    x, shift = torch.randn(3, 3, 6, 6), torch.randn(2)
    module.load_state_dict(reference.state_dict())
    same(module(x, shift=shift), reference(x, shift=shift))
    with torch.no_grad():
        module.conv.weight.mul_(2)
        reference.conv.weight.mul_(2)
    same(module(x, shift=shift), reference(x, shift=shift))
    weight = torch.randn(4, 3, 3, 3)
    module.conv.weight = nn.Parameter(weight)
    reference.conv.weight = nn.Parameter(weight.clone())
    same(module(x, shift=shift), reference(x, shift=shift))
    other = Counting()
    module.load_state_dict(other.state_dict(), assign=True)
    same(module(x, shift=shift), other(x, shift=shift))


def test_functional_call_swaps_the_weights(built):
    module, _, reference = built
    module, reference = copy.deepcopy(module), copy.deepcopy(reference)
    module.load_state_dict(reference.state_dict())
    x, shift = torch.randn(3, 3, 6, 6), torch.randn(2)
    swapped = {"conv.weight": torch.randn(4, 3, 3, 3)}
    result = torch.func.functional_call(module, swapped, (x,), {"shift": shift})
    same(result, torch.func.functional_call(reference, swapped, (x,), {"shift": shift}))


def test_a_deep_copy_has_its_own_tensors_and_the_same_code(built):
    module, _, _ = built
    x, shift = torch.randn(3, 3, 6, 6), torch.randn(2)
    twin = copy.deepcopy(module)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    twin(x, shift=shift)
    for name, value in module.state_dict().items():
        same(value, before[name])
    assert not torch.equal(twin.count, module.count)
    assert twin.code == module.code
    assert isinstance(twin.conv.weight, nn.Parameter)


def test_pickling_is_refused_with_what_to_do(built):
    with pytest.raises(pickle.PicklingError, match=r"state_dict\(\)"):
        pickle.dumps(built[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.double(),
        lambda m: m.conv.half(),
        lambda m: setattr(m.conv, "weight", nn.Parameter(torch.randn(4, 3, 3, 3).double())),
        lambda m: setattr(m.conv, "bias", nn.Parameter(torch.randn(5))),
        lambda m: m.to(memory_format=torch.channels_last),
        lambda m: m.to("meta"),
    ],
)
def test_weights_that_compiled_code_cannot_read_are_refused(built, change):
    module = copy.deepcopy(built[0])
    module(torch.randn(3, 3, 6, 6), shift=torch.randn(2))
    change(module)
    with pytest.raises(InputMismatchError, match=r"compiled for other weights: conv\.\w+ has"):
        module(torch.randn(3, 3, 6, 6), shift=torch.randn(2))


def test_without_compiled_code_weights_may_change_type():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    module = compiled(torch.fx.symbolic_trace(model), (torch.randn(2, 3),))
    assert not module.is_compiled
    x = torch.randn(4, 3, dtype=torch.float64)
    same(module.double()(x), model(x))  # the called layers are the model's own


GOOD = (torch.randn(4, 3, 6, 6), torch.randn(2))


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((torch.randn(17, 3, 6, 6),), {"shift": GOOD[1]}, r"x\.shape\[0\] is 17, .* 2 to 16"),
        ((torch.randn(1, 3, 6, 6),), {"shift": GOOD[1]}, r"x\.shape\[0\] is 1, .* 2 to 16"),
        ((torch.randn(4, 3, 6, 7),), {"shift": GOOD[1]}, r"input x has to be .* not .*6, 7\]"),
        ((torch.randn(4, 3, 6),), {"shift": GOOD[1]}, r"input x has to be "),
        ((GOOD[0].double(),), {"shift": GOOD[1]}, r"input x has to be a float32 .* not a float64"),
        ((GOOD[0].to("meta"),), {"shift": GOOD[1]}, r"input x has to be .* on cpu, not .* on meta"),
        ((GOOD[0].to_sparse(),), {"shift": GOOD[1]}, r"input x has to be"),
        ((GOOD[0],), {"shift": 3}, r"input shift has to be a float32 tensor .* not the int 3"),
        ((GOOD[0],), {}, r"structure \(\*, shift=\*\) and was called with \(\*\)"),
        ((GOOD[0],), {"shift": GOOD[1], "y": 1}, r"was called with \(\*, shift=\*, y=\*\)"),
        (([GOOD[0]],), {"shift": GOOD[1]}, r"input x has to be .* not a list"),
        ((None,), {"shift": GOOD[1]}, r"input x has to be .* not None"),
    ],
)
def test_wrong_calls_say_what_is_wrong(built, args, kwargs, message):
    module = built[0]
    before = module.count.clone()
    with pytest.raises(InputMismatchError, match=message):
        module(*args, **kwargs)
    same(module.count, before)


class Related(nn.Module):
    def forward(self, x, y, flag=2):
        torch._check(x.shape[0] % 4 == 0)
        return x + y[: x.shape[0]] * flag, x.shape[0] * 2


@pytest.fixture(scope="module")
def related():
    shapes = {"x": {0: Dim.AUTO}, "y": {0: Dim.AUTO}, "flag": None}
    args = torch.randn(8, 2), torch.randn(8, 2)
    return compiled(Related(), args, {"flag": 2}, dynamic_shapes=shapes)


def test_conditions_of_the_captured_graph_hold_for_calls(related):
    for n in (4, 12):
        x, y = torch.randn(n, 2), torch.randn(n, 2)
        same(related(x, y, flag=2), Related()(x, y))
    with pytest.raises(InputMismatchError, match=r"condition of the captured graph.*x\.shape\[0\]"):
        related(torch.randn(6, 2), torch.randn(6, 2), flag=2)
    with pytest.raises(InputMismatchError, match=r"flag was 2 when .* is now 3"):
        related(torch.randn(4, 2), torch.randn(4, 2), flag=3)


def test_arguments_may_be_passed_by_position_or_by_name(related):
    x, y = torch.randn(4, 2), torch.randn(4, 2)
    expected = Related()(x, y)
    for call in (
        lambda: related(x, y, 2),
        lambda: related(x, y=y, flag=2),
        lambda: related(y=y, x=x, flag=2),
    ):
        same(call(), expected)
    for call in (lambda: related(x, y, 2, flag=2), lambda: related(x, x=x, flag=2)):
        with pytest.raises(InputMismatchError, match="structure"):
            call()


def test_tied_sizes_are_checked():
    class Add(nn.Module):
        def forward(self, x, pair):
            return x + pair["a"], pair["b"].sin()

    n = Dim("n", min=2, max=64)
    shapes = {"x": {0: n}, "pair": {"a": {0: n}, "b": {0: 2 * n}}}
    module = compiled(
        Add(), (torch.randn(4), {"a": torch.randn(4), "b": torch.randn(8)}), dynamic_shapes=shapes
    )
    x, pair = torch.randn(6), {"b": torch.randn(12), "a": torch.randn(6)}
    same(module(x, pair), Add()(x, pair))
    with pytest.raises(InputMismatchError, match=r"pair\['a'\] has size 5 in dimension 0"):
        module(torch.randn(6), {"a": torch.randn(5), "b": torch.randn(12)})
    with pytest.raises(InputMismatchError, match=r"pair\['b'\] has size 11 .* has to be 12"):
        module(torch.randn(6), {"a": torch.randn(6), "b": torch.randn(11)})


def test_inputs_in_another_layout_are_taken():
    class View(nn.Module):
        def forward(self, x):
            return (x * 2).view(-1), x.view(-1), x

    module = compiled(View(), (torch.randn(3, 4),))
    x = torch.randn(4, 3).t()
    result = module(x)
    same(result[:2], View()(x.contiguous())[:2])
    assert result[2] is x


class Mutating(nn.Module):
    def forward(self, x, y):
        x.add_(1)
        z = y.relu()
        y.copy_(x)
        return x, z, y


def test_updates_of_inputs_reach_the_caller():
    module = compiled(Mutating(), (torch.randn(3), torch.randn(3)))
    x, y = torch.randn(3), torch.randn(3)
    other_x, other_y = x.clone(), y.clone()
    result = module(x, y)
    same(result, Mutating()(other_x, other_y))
    same((x, y), (other_x, other_y))
    assert result[0] is x
    assert result[2] is y
    base = torch.randn(6)
    before = base.clone()
    module(base[::2], torch.randn(3))  # another layout: the caller's memory is written all the same
    assert torch.equal(base[::2], before[::2] + 1)
    assert torch.equal(base[1::2], before[1::2])


class Swapping(nn.Module):
    """Exchanges two buffers: each update reads what the other one overwrites."""

    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.arange(3.0))
        self.register_buffer("b", -torch.arange(3.0))

    def forward(self, x):
        old = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(old)
        return x + self.a


def test_buffers_that_exchange_their_values():
    module, reference = compiled(Swapping(), (torch.randn(3),)), Swapping()
    x = torch.randn(3)
    for _ in range(3):
        same(module(x), reference(x))
        same_state(module, reference)


def test_an_update_whose_value_is_another_updated_buffer_is_copied_first():
    module = compiled(Swapping(), (torch.randn(3),))
    call = module._call
    program = torch.export.export(Swapping(), (torch.randn(3),), strict=False)
    program = program.run_decompositions({})
    from hierpart.capture.exported_call import _writes

    # Rewire the update of b to the memory of a, which is written first.
    output = program.graph.output_node()
    placeholders = {n.name: n for n in program.graph.find_nodes(op="placeholder")}
    values = list(output.args[0])
    values[1] = placeholders["b_a"]
    output.args = (tuple(values),)
    assert [w.copied for w in call.writes] == [False, False]
    assert [w.copied for w in _writes(program, [2])] == [False, True]


class Returning(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2))
        self.tied = self.weight

    def forward(self, x, unused):
        return x, self.weight, [x.relu(), x], {"tied": self.tied, "k": 3, "none": None}


def test_inputs_weights_and_constants_come_back_as_they_are():
    model = Returning()
    module = compiled(model, (torch.randn(2), torch.randn(1)))
    x = torch.randn(2)
    result = module(x, torch.randn(1))
    with torch.no_grad():
        same(result, model(x, None))
    assert result[0] is x
    assert result[2][1] is x
    assert result[1] is module.weight
    assert module.tied is module.weight


def test_names_of_the_models_parts_do_not_collide_with_our_own():
    class Awkward(nn.Module):
        def __init__(self):
            super().__init__()
            self.report, self.plan = nn.Linear(2, 2), nn.Linear(2, 2)
            self._watch, self._call = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self._call(self._watch(self.plan(self.report(x))))

    model, x = Awkward(), torch.randn(3, 2)
    module = compiled(model, (x,))
    with torch.no_grad():
        same(module(x), model(x))
    assert list(module.state_dict()) == list(model.state_dict())
    assert "what runs where" in str(module.report)
    with torch.no_grad():
        same(copy.deepcopy(module)(x), model(x))


def test_results_carry_no_gradient_and_modes_around_do_not_matter():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), torch.randn(2, 4)
    module = compiled(model, (x,))
    with torch.no_grad():
        expected = model(x)
    assert not module(x).requires_grad
    same(module(x), expected)
    with torch.autocast("cpu", torch.bfloat16):
        same(module(x), expected)
    with torch.inference_mode():
        same(module(x), expected)
        assert module(x).is_inference()
    x.requires_grad_()
    assert not module(x).requires_grad


def test_casts_of_an_autocast_region_are_captured():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), torch.randn(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        module = compiled(model, (x,))
        expected = model(x).detach()
    assert expected.dtype is torch.bfloat16
    same(module(x), expected)


def test_a_call_inside_a_compiled_function_and_from_threads(built):
    import concurrent.futures

    class Sum(nn.Module):
        def forward(self, x):
            return (x * 2).relu() + x

    module = compiled(Sum(), (torch.randn(5),))
    inputs = [torch.randn(5) for _ in range(64)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(module, inputs))
    for x, result in zip(inputs, results, strict=True):
        same(result, Sum()(x))


# Raw GraphModules.


def symbolic(model, **concrete):
    """Trace with parameters and buffers as graph inputs and layers as called modules."""

    class Tracer(torch.fx.Tracer):
        proxy_buffer_attributes = True

    graph = Tracer().trace(model, concrete_args=concrete or None)
    return torch.fx.GraphModule(model, graph)


class Raw(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("count", torch.ones(3))
        self.register_buffer("hidden", torch.ones(4), persistent=False)

    def forward(self, input, *, power=2.0):  # noqa: A002
        self.count.add_(1)
        y = self.norm(self.conv(input)).relu().mean((2, 3)) * self.weight
        return {"y": (y * self.hidden).sin(), "count": self.count}, power


def test_a_traced_module_keeps_its_signature_layers_state_and_updates():
    model, x = Raw(), torch.randn(2, 3, 6, 6)
    reference = copy.deepcopy(model)
    gm = symbolic(model)
    module = compiled(gm, (x,))
    assert module.is_compiled
    same(model.count, reference.count)  # recording shapes has run nothing for real
    for _ in range(2):
        result = module(input=x)
        same(result, reference(x))
        assert result[0]["count"] is module.count
    same(module(x, power=2.0), reference(x))
    assert module.conv is model.conv
    assert set(module.state_dict()) == set(gm.state_dict())
    for name, value in reference.state_dict().items():
        same(module.state_dict()[name], value)
    twin = copy.deepcopy(module)
    assert twin.conv is not module.conv
    twin(x)
    same(module.norm.running_mean, reference.norm.running_mean)
    same(twin(x)[0]["count"], module.count + 2)
    with pytest.raises(InputMismatchError, match="input input has to be"):
        module(torch.randn(3, 3, 6, 6))


def test_an_unlifted_export_keeps_guards_hooks_and_pytrees():
    model, x, shift = Counting(), torch.randn(4, 3, 6, 6), torch.randn(2)
    reference = copy.deepcopy(model)
    shapes = {"x": {0: Dim("batch", min=2, max=9)}, "shift": None}
    program = torch.export.export(
        model, (x,), {"shift": shift}, dynamic_shapes=shapes, strict=False
    )
    module = compiled(program.module())
    assert module.report.notes == ()
    for size in (4, 7):
        x = torch.randn(size, 3, 6, 6)
        same(module(x, shift=shift), reference(x, shift=shift))
    for name, value in reference.state_dict().items():
        same(module.state_dict()[name], value)
    with pytest.raises(Exception, match="<= 9"):
        module(torch.randn(10, 3, 6, 6), shift=shift)
    hooked = program.module()
    hooked.register_forward_hook(lambda m, args, result: (result, "seen"))
    assert compiled(hooked)(x, shift=shift)[1] == "seen"


def test_a_graph_without_shapes_says_what_to_pass():
    gm = torch.fx.symbolic_trace(nn.Sequential(nn.ReLU(), nn.Tanh()))
    module = compiled(gm)
    assert "pass args" in module.report.notes[0]
    x = torch.randn(2)
    same(module(x), x.relu().tanh())
    broken = torch.fx.symbolic_trace(lambda x: x @ x)
    module = compiled(broken, (torch.randn(2, 3),))
    assert "No shapes could be recorded" in module.report.notes[0]


def test_regions_of_a_raw_graph_run_in_their_mode():
    class Region(nn.Module):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                y = x @ x
            return y.float() @ x

    graphs = []

    def keep(gm, inputs):
        graphs.append(gm)
        return gm.forward

    x = torch.randn(4, 4)
    torch.compile(Region(), backend=keep)(x)
    (gm,) = graphs
    module = compile_model(gm, options=options_for(Double("first")))
    same(module(x)[0], Region()(x))


def test_a_program_that_cannot_be_made_functional_is_split_as_it_is(monkeypatch):
    """Torch's pass over the whole graph fails on some that it has exported itself."""
    model, x, shift = Counting(), torch.randn(4, 3, 6, 6), torch.randn(2)
    reference = copy.deepcopy(model)

    def fail(*args, **kwargs):
        raise AssertionError("expected a GraphModule\nmore")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", fail)
    module = compiled(model, (x,), {"shift": shift})
    assert "(AssertionError: expected a GraphModule)" in module.report.notes[0]
    same(module(x, shift=shift), reference(x, shift=shift))
    for name, value in reference.state_dict().items():
        same(module.state_dict()[name], value)


# The flat function.


def test_the_flat_function_frees_values_and_inputs_at_their_last_use():
    class Deep(nn.Module):
        def forward(self, x):
            return ((x * 2).relu() * 3).relu() * 4

    alive = []
    seen: list[weakref.ref] = []

    def watch(function, inputs):
        def run(args):
            alive.append([r() is not None for r in seen])
            (value,) = args
            args.clear()
            seen.append(weakref.ref(value))
            (result,) = function(value)
            del value
            alive.append([r() is not None for r in seen])
            return [result]

        run._boxed_call = True
        return run

    backend = Wrapping("first", watch, refuses=["relu"])
    program = torch.export.export(Deep(), (torch.randn(3),), strict=False)
    gm = program.run_decompositions({}).graph_module
    result = run_line(gm, options_for(backend))
    from hierpart.build.compiling import build_blocks

    built = build_blocks(result.split(), result.plan, options_for(backend))
    flat = flatten(result.split(), built.calls, exact_inputs=True)
    flat.run([torch.randn(3)])
    assert alive == [[], [False], [False], [False, False], [False, False], [False, False, False]]


def test_errors_point_at_the_line_of_the_generated_function():
    import traceback

    module = compiled(nn.ReLU(), (torch.randn(3),))
    module._flat.root.__dict__.clear()
    broken = compiled(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (torch.randn(2, 3),))
    broken._flat.root.__dict__.clear()
    with pytest.raises(AttributeError) as caught:
        broken(torch.randn(2, 3))
    lines = [f.line for f in traceback.extract_tb(caught.value.__traceback__)]
    assert any("_run_on_acc_first_0" in (line or "") for line in lines)
