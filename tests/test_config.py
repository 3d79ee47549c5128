import copy
import random
from pathlib import Path

import pytest

import batchnuts
import batchnuts.cli.config as config_module
from batchnuts.cli.config import (
    ConfigError,
    TargetOptions,
    config_of,
    load_config,
    packaged_configs,
)
from batchnuts.cli.describe_keys import describe_keys
from batchnuts.mcmc.model.declarations import SUPPORTS
from batchnuts.mcmc.output.formats import OUTPUT_FORMATS
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.settings.until import Until
from batchnuts.models import REGISTRY
from batchnuts.settings.yaml import find_config
from batchnuts.user_models.target import VariableOptions

GAUSS = "model: {name: correlated_gaussian, dimension: 3}\n"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Write a config into a current folder, which has a file of data, and load it."""
    monkeypatch.chdir(tmp_path)
    Path("a.csv").touch()

    def load(text, *overrides):
        Path("my.yaml").write_text(text)
        return load_config("my.yaml", overrides)

    return load


@pytest.mark.parametrize("name", packaged_configs())
def test_packaged_configs_are_valid_and_found_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(name) == load_config(name.removesuffix(".yaml"))
    assert load_config(name).decided(0).output.path == name.replace(".yaml", ".nc")


def test_a_path_wins_over_a_packaged_name(config):
    Path("logreg.yaml").write_text(GAUSS)
    assert load_config("logreg.yaml").model.name == "correlated_gaussian"


def test_defaults_and_overrides(config):
    run = config(GAUSS, "sampler.draws=7", "sampler.draws=8", "execution.expert.mode=eager", "output.path=x.nc")
    assert run.sampler == SamplerSettings(draws=8)
    assert run.execution == ExecutionSettings(expert={"mode": "eager"})
    assert run.output.path == "x.nc"
    assert config(GAUSS).output.path is None
    assert config(GAUSS + "sampler:\n", "sampler.seed=3").sampler.seed == 3


def test_overrides_make_groups_within_groups(config):
    run = config(GAUSS, "sampler.until.ess_bulk=400", "sampler.until.parameters=[position]")
    assert run.sampler.until == Until(ess_bulk=400, parameters=["position"])
    of_file = GAUSS + "sampler:\n  until: {ess_bulk: 100, rhat: 1.05}\n"
    assert config(of_file, "sampler.until.ess_bulk=400").sampler.until == Until(ess_bulk=400, rhat=1.05)
    assert config(of_file, "sampler.until=null").sampler.until is None


@pytest.mark.parametrize(
    "text",
    [
        GAUSS,
        "model: {name: correlated_gaussian, covariance: diagonal}\nsampler: {step_size: 0.1}\n",
        "model: {name: logistic_regression, data: a.csv, label: 3, features: [a, 1]}\n",
        "model: {target: 'm:f', variables: {mu: [], theta: [8, 2]}}\nexecution: {max_stack_depth: 5}\n",
        GAUSS + "sampler: {until: {ess_bulk: 400, seconds: 2.5, parameters: [beta]}, superchains: 8}\n",
    ],
)
def test_resolved_config_is_a_config_of_the_same_run(config, text):
    run = config(text)
    again = config(run.to_yaml())
    assert again == run
    assert again.to_yaml() == run.to_yaml()


BAD = [
    ("sampler:\n  chians: 3\n", (), "my.yaml:3: sampler.chians: unknown key; did you mean 'chains'?"),
    ("sampler:\n  chains: x\n", (), "my.yaml:3: sampler.chains: found 'x' (a string); expected an integer or auto"),
    ("sampler:\n  chains: 0\n", (), "my.yaml:3: sampler.chains: found 0; expected auto, or an integer of at least 1"),
    (
        "sampler: {draws: -5}\n",
        (),
        "my.yaml:2: sampler.draws: found -5 (an integer); expected an integer of at least 1",
    ),
    (
        "sampler: {until: {ess: 4}}\n",
        (),
        "my.yaml:2: sampler.until.ess: unknown key; did you mean 'ess_bulk' or 'ess_tail'?",
    ),
    (
        "sampler:\n  until:\n    ess_blk: 4\n",
        (),
        "yaml:4: sampler.until.ess_blk: unknown key; did you mean 'ess_bulk'?",
    ),
    ("sampler:\n  until: {ess_bulk: 0}\n", (), "my.yaml:3: sampler.until.ess_bulk: found 0 (an integer); expected"),
    ("", ("sampler.until.rhat=1",), "rhat=1: sampler.until.rhat: found 1 (an integer); expected null or a"),
    ("sampler: {until: 400}\n", (), "my.yaml:2: sampler.until: found 400 (an integer); expected null or a mapping"),
    ("sampler: {until: {}}\n", (), "my.yaml:2: sampler.until: nothing ends sampling; set at least one of ess_bulk, "),
    ("", ("sampler.until={seconds: 3, parameters: [mu]}",), "sampler.until: parameters are named, but no condition"),
    ("sampler: {until: {ess_bulk: 4, parameters: []}}\n", (), "sampler.until.parameters: found []"),
    ("sampler: {chains: 4, superchains: 5}\n", (), "sampler.superchains: found 5; expected at most the number"),
    ("output: {unconstrained: yes}\n", (), "found 'yes' (a string); expected true or false"),
    (
        "sampler: {adapt_metric: false}\n",
        (),
        "my.yaml:2: sampler.adapt_metric: there is no such setting any more; write metric: unit",
    ),
    (
        "",
        ("sampler.adapt_metric=false",),
        "sampler.adapt_metric: there is no such setting any more; write metric: unit",
    ),
    ("sampler: {metric_rank: 3}\n", (), "metric_rank: found 3, which has no effect on metric 'diag'"),
    ("execution: {cache: 1}\n", (), "execution.cache: found 1; expected auto, the path of a folder, or null"),
    ("", ("execution.cache=false",), "execution.cache: found False; expected auto, the path of a folder, or null"),
    ("sampler: {mode: xla}\n", (), "sampler.mode: unknown key; did you mean 'execution.expert.mode'?"),
    (
        "execution: {backend: tensrflow}\n",
        (),
        "one of auto, native, native_tensorflow, native_numpy, jax, tensorflow, numpy; did you mean 'tensorflow'?",
    ),
    ("sampler: 5\n", (), "my.yaml:2: sampler: found 5; expected a mapping with keys among chains, warmup"),
    ("sampelr: {}\n", (), "my.yaml:2: sampelr: unknown section; did you mean 'sampler'?"),
    ("chains: 4\n", (), "my.yaml:2: chains: unknown section; did you mean 'sampler.chains'?"),
    ("draws: 4\n", (), "my.yaml:2: draws: unknown section; did you mean 'sampler.draws'?"),
    ("iter: 4\n", (), "my.yaml:2: iter: unknown section; did you mean 'sampler.draws'?"),
    ("sampler: {iter: 4}\n", (), "my.yaml:2: sampler.iter: unknown key; did you mean 'sampler.draws'?"),
    ("sampler: {cores: 4}\n", (), "my.yaml:2: sampler.cores: unknown key; did you mean 'execution.expert.shards'?"),
    ("sampler: {seed: 1}\nsampler: {seed: 2}\n", (), "my.yaml:3: the key 'sampler' is given twice"),
    ("sampler: {seed: 1\n", (), "this is not YAML"),
    ("sampler: {1: 2}\n", (), "found the key 1; expected names as keys"),
    ("sampler: {seed: !!binary aGk=}\n", (), "my.yaml:2: the tag tag:yaml.org,2002:binary is not supported"),
    ("output: {summary_rows: 0}\n", (), "output.summary_rows: found 0"),
    ("output: {path: ''}\n", (), "output.path: found ''"),
    ("output: {path: 'a.csv'}\n", (), "output.path: found 'a.csv'; expected a path that ends in .nc or .zarr"),
    (
        "output: {path: 's3://runs/a.nc'}\n",
        (),
        "output.path: found the URL 's3://runs/a.nc' with a netCDF file; these are written to local disks",
    ),
    ("", ("output.path=gs://runs/a", "output.format=netcdf"), "found the URL 'gs://runs/a' with a netCDF file"),
    (
        "output: {path: 's3://me:word@runs/a.zarr'}\n",
        (),
        "output.path: found a URL with a password; expected one without, since it is saved with the draws",
    ),
    (
        "output: {path: 'simplecache::s3://runs/a.zarr'}\n",
        (),
        "output.path: found 'simplecache::s3://runs/a.zarr'; expected one protocol",
    ),
    (
        "output: {path: 's3://runs/'}\n",
        (),
        "output.path: found 's3://runs/'; expected the URL of a store in it, such as s3://runs/run.zarr",
    ),
    ("output: {draws: false, path: 's3://runs/a'}\n", (), "output.draws: found false with a Zarr store"),
    (
        "output: {path: a.zarr, format: netcdf}\n",
        (),
        "output.path: found 'a.zarr' with format netcdf; expected a path",
    ),
    (
        "output: {path: a.NC, format: zarr}\n",
        (),
        "path: found 'a.NC' with format zarr; expected a path that ends in .zarr",
    ),
    (
        "output: {format: zar}\n",
        (),
        "output.format: found 'zar' (a string); expected one of auto, netcdf, zarr",
    ),
    (
        "output: {draws: false, thin: 2, report: true}\n",
        (),
        "output.draws: found false with report, thin, which need the draws; expected draws: true, or no report and no "
        "thin",
    ),
    ("output: {draws: false, path: a.zarr}\n", (), "output.draws: found false with a Zarr store"),
    (
        "output: {draws: false}\nsampler: {until: {ess_bulk: 400}}\n",
        (),
        "output.draws: found false with sampler.until, which looks at all draws; expected true, or sampler.until: null",
    ),
    ("output: {thin: 0}\n", (), "output.thin: found 0 (an integer); expected an integer of at least 1"),
    ("output: {variables: []}\n", (), "output.variables: found [] (a list); expected null or a list"),
    ("output: {groups: [loo]}\n", (), "output.groups.0: found 'loo' (a string); expected null or a list (each"),
    ("output: {dtype: float16}\n", (), "output.dtype: found 'float16' (a string); expected null or float32"),
    ("", ("sampler.chians=3",), "command line, sampler.chians=3: sampler.chians: unknown key; did you mean 'chains'?"),
    ("", ("sampler.chains",), "expected key.path=value"),
    ("", ("sampler..chains=2",), "expected key.path=value"),
    ("", ("sampler.chains=",), "the value is missing; write null"),
    ("", ("sampler.chains=[1",), "the value is not YAML"),
    ("sampler: {seed: 3}\n", ("sampler.seed.deep=2",), "sampler.seed is 3, which has no keys"),
    ("", ("model.name=corelated_gausian",), "did you mean 'correlated_gaussian'?"),
    ("", ("model.name=logistic_regression",), "my.yaml:1: model.dimension: unknown key"),
    ("", ("model.target=a:b",), "found both name and target"),
    ("", ("model.correlation=0.5",), "correlation: found 0.5, which has no effect on covariance 'wishart'"),
    ("", ("model.covariance=equicorrelated", "model.correlation=-0.6"), "expected a number above -0.5"),
    ("", ("model=7",), "model: found 7; expected a mapping with name"),
]


# fmt: off
BAD += [
    (
        "sampler: &a {seed: 1}\noutput: *a\n",
        (),
        "my.yaml:2: anchors and aliases (&a, *a) are not supported; repeat the value",
    ),
    ("sampler:\n  <<: {seed: 1}\n", (), "my.yaml:3: merge keys (<<) are not supported; repeat the keys"),
    ("sampler:\n  seed: " + "[" * 5000, (), "my.yaml:3: more than 20 levels of nested lists or mappings"),
    ("".join("  " * n + "a:\n" for n in range(5000 // 16)), (), "more than 20 levels of nested lists or mappings"),
    (
        "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60)),
        (),
        "my.yaml:2: anch",
    ),
    ("sampler: &a {seed: *a}\n", (), "my.yaml:2: anchors and aliases"),
    ("---\nsampler: {}\n", (), "my.yaml:2: a second document begins here; expected one"),
    ("sampler: {seed: !mine 3}\n", (), "my.yaml:2: the tag !mine is not supported; expected a plain value"),
    ("sampler: !!omap [a: 1]\n", (), "my.yaml:2: the tag tag:yaml.org,2002:omap is not supported"),
    ("sampler: {seed: " + "9" * 5000 + "}\n", (), "my.yaml:2: found 999"),
    (
        "sampler: {seed: 0x" + "f" * 1900 + "}\n",
        (),
        "my.yaml:2: sampler.seed: found an integer of 2288 digits (an integer)",
    ),
    (
        "sampler: {step_size: 1e999}\n",
        (),
        "sampler.step_size: found inf (a number); expected null or a number of at least",
    ),
    ("sampler:\n  seed: \x01\n", (), "my.yaml:3: this is not YAML: the character '\\x01' is not allowed"),
    ("sampler:\n  seed: a\0b\n", (), "my.yaml:3: this is not YAML: the character '\\x00' is not allowed"),
    ("sampler:\n  ? [a, b]\n  : 3\n", (), "my.yaml:3: sampler: found the key ("),
    ("sampler: {seed: 2001-01-01}\n", (), "my.yaml:2: sampler.seed: found a date"),
    ("sampler: {seed: " + "[" * 15 + "]" * 15 + "}\n", (), "my.yaml:2: sampler.seed: found [[["),
    ("sampler: {mode: '" + "x" * 1900 + "'}\n", (), "my.yaml:2: sampler.mode: unknown key"),
    ("execution: {expert: {mode: '" + "x" * 1900 + "'}}\n", (), "...xxx"),
    ("execution: {mode: xla}\n", (), "my.yaml:2: execution.mode: is a setting for experts; write execution.expert."),
    ("", ("execution.shards=2",), "execution.shards: is a setting for experts; write execution.expert.shards"),
    ("execution: {expert: graph}\n", (), "execution.expert: found 'graph'; expected a mapping with keys among exec"),
    ("execution: {backend: numpy, expert: {mode: xla}}\n", (), "execution.expert.mode: found 'xla', which has no"),
    ("", ("sampler.seed=" + "[" * 5000,), "more than 20 levels of nested lists or mappings"),
    ("", ("sampler.seed=&a [*a]",), "command line, sampler.seed=&a [*a]: anchors and aliases"),
    ("", (".".join(["sampler"] * 5000) + "=1",), "found 5000 keys; expected key.path=value"),
    ("", ("samplr.draws=3",), "command line, samplr.draws=3: samplr: unknown section; did you mean 'sampler'?"),
    ("sampler: {seed: 1}\n", ("sampler.chains=auto",), "command line, sampler.chains=auto: sampler.chains: found 'a"),
    ("", ("output.path=x.nc", "output.format=zarr"), "command line, output.path=x.nc: output.path: found 'x.nc' with"),
    (
        "sampler: {seed: 1}\n",
        ("sampler.until.parameters=[mu]",),
        "command line, sampler.until.parameters=[mu]: sampler.until: nothing ends sampling",
    ),
    (
        "sampler:\n  init: {method: uniform}\n",
        ("sampler.init.method=values",),
        "my.yaml:3, and command line, sampler.init.method=values: sampler.init: method is values, but",
    ),
    ("", ("draws=3",), "command line, draws=3: draws: unknown section; did you mean 'sampler.draws'?"),
    ("", ("output.path=''",), "output.path: found '' (an empty string); expected a path, a URL, or null"),
    ("", ("output.variables=[]",), "found [] (a list); expected null or a list (each item a string) with 1 or more"),
    ("", ("sampler.init.run=''",), "found '' (a string); expected null or a string of at least 1 character"),
    ("", ("model={target: 'a:b', variables: {a: null}}",), "variables.a: found None; expected a shape such as [3]"),
    (
        "",
        ("model={target: 'a:b', variables: {k: integer}}",),
        "variables.k.support: found 'integer', but discrete parameters cannot be sampled",
    ),
    ("", ("model={target: 'a/b.py:f', dimension: 1}",), "expected package.module:function, without .py"),
    ("", ("sampler.seed=!!python/name:os.system x",), "is not supported; expected a plain value"),
    ("", ("sampler.seed=1\n--- 2",), "a second document begins here"),
    ("", ("sampler.seed=\x01",), "the value is not YAML: the character '\\x01' is not allowed"),
    (
        "",
        ("sampler.chains=99999999999999999999",),
        "found 99999999999999999999; expected auto, or an integer of at least 1",
    ),
    (
        "",
        ("sampler.chains=10000000", "sampler.draws=1000000000"),
        "sampler.draws=1000000000: sampler.chains x sampler.draws: 10000000 x",
    ),
    ("", ("model={name: logistic_regression, rows: 1000000000, columns: 10000000}",), "do not fit into this machine's"),
    (
        "",
        ("model={target: 'a:b', variables: {x: [10000000, 10]}}",),
        "model.variables.x: found the shape [10000000, 10]",
    ),
    (
        "",
        ("model={target: 'a:b', variables: {x: [0]}}",),
        "variables.x: found the shape [0]; expected lengths of at least",
    ),
]
# fmt: on


def test_what_configs_name_is_what_python_has():
    """Of supports and formats: each has a declaration, and what writes it."""
    for name, named in SUPPORTS.items():
        bounds = dict(zip(named.bounds, (-1.0, 1.0)))
        options = VariableOptions.model_validate(
            {"support": name, "shape": [2, 2] if "cholesky" in name else [3], **bounds}
        )
        declare = getattr(batchnuts, name)
        declared = declare(*((2,) if "cholesky" in name else (*bounds.values(), 3)))
        assert repr(options.parameter("x", {}).support) == repr(declared.support)  # arrays may be in it
    formats = reversed(OUTPUT_FORMATS.items())  # of formats with the same endings, these stand for the first one
    by_ending = {ending: name for name, format_ in formats for ending in format_.endings}
    assert by_ending == dict.fromkeys(OUTPUT_FORMATS["netcdf"].endings, "netcdf") | {".zarr": "zarr"}
    assert {name for name, format_ in OUTPUT_FORMATS.items() if format_.streams} == {"zarr"}


def test_the_config_in_a_file_of_an_earlier_version_is_read(config):
    """There the settings of `execution.expert` stood in `execution`."""
    stored = config(GAUSS, "execution.expert.mode=eager", "execution.expert.shards=2").resolved()
    earlier = copy.deepcopy(stored)
    earlier["execution"] |= earlier["execution"].pop("expert")
    assert config_of(earlier, Path("run.nc")).resolved() == stored


@pytest.mark.parametrize(("text", "overrides", "message"), BAD, ids=range(len(BAD)))
def test_bad_configs_are_named_with_their_place(config, text, overrides, message):
    with pytest.raises(ConfigError) as caught:
        config(GAUSS + text, *overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found neither name nor target; expected one of them: name (one of logistic_regression, "),
        ("- 1\n", "found a list; expected the sections model, sampler"),
        ("hello\n", "found a str; expected the sections"),
        ("model: {target: nocolon, dimension: 3}", "target is 'nocolon'; expected package.module:function"),
        ("model: {target: 'a:b'}", "exactly one of dimension"),
        ("model: {target: 'a:b', dimension: 2, variables: {a: []}}", "exactly one of dimension"),
        ("model: {target: 'a:b', variables: {}}", "variables is empty"),
        ("model: {target: 'a:b', variables: {mu: 3}}", "model.variables.mu: found 3; expected a shape such as [3]"),
        ("model: {dimension: 2}", "neither name nor target"),
        ("model: {name: logistic_regression, label: y}", "label: found 'y', which has no effect on synthetic data"),
        ("model: {name: logistic_regression, data: a.csv, rows: 5}", "rows: found 5, which has no effect where data"),
        (
            "model: {name: logistic_regression, data: b.csv}",
            "my.yaml:1: model.data: b.csv: there is no such file (look",
        ),
        (
            "model: {target: 'a:b', dimension: 1,\n  data: {path: b.csv}}",
            "my.yaml:2: model.data.path: b.csv: there is no such file (looked for /",
        ),
    ],
)
def test_bad_models_are_named(config, text, message):
    with pytest.raises(ConfigError) as caught:
        config(text)
    assert message in str(caught.value)


def test_all_mistakes_are_reported_together(config):
    with pytest.raises(ConfigError) as caught:
        config(GAUSS + "sampler: {chains: 0, drawz: 1}\nfoo: 1\n", "execution.expert.mode=3")
    assert len(str(caught.value).splitlines()) == 4


def test_unreadable_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"did you mean 'logreg'\?.*Packaged configs: correlated_gaussian.yaml, "):
        load_config("logrg.yaml")
    with pytest.raises(ConfigError, match="this is a folder"):
        load_config(".")
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a UTF-8 text file"):
        load_config("binary.yaml")


def test_files_that_are_no_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("latin.yaml").write_bytes(b"sampler:\n  seed: 1\n# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml:3: not a UTF-8 text file"):
        load_config("latin.yaml")
    Path("long.yaml").write_text("# " + "x" * 300_000)
    with pytest.raises(ConfigError, match="has 300002 bytes; expected a config of at most 200000"):
        load_config("long.yaml")
    Path("marked.yaml").write_bytes(b"\xef\xbb\xbf" + GAUSS.encode())
    assert load_config("marked.yaml").model.dimension == 3


SCHEMAS = [(f"model={{name: {name}}}", "model", model.options) for name, model in REGISTRY.items()]
SCHEMAS += [("sampler.seed=0", name, schema) for name, schema in config_module.SECTIONS.items()]
ABSURD = ["-1", "0", "1e-320", "1e308", "99999999999999999999", "-9223372036854775809", "1e999", ".nan", "-.inf",
          "true", "[]", "{}", "''", "0x" + "f" * 1900, "1_000", "[[[1]]]", "null", "'\\0'", "1.5"]  # fmt: skip


@pytest.mark.parametrize(("base", "section", "schema"), SCHEMAS, ids=lambda value: getattr(value, "__name__", ""))
def test_no_setting_has_a_value_that_is_let_through_to_fail_later(config, base, section, schema):
    """Every key at absurd values: refused with its key, or within bounds that a machine can be asked for."""
    for key in schema.model_fields:
        for value in ABSURD:
            override = f"{section}.{key}={value}"
            message = ""
            try:
                run = config(GAUSS, base, override)
            except ConfigError as error:
                message = str(error)
            if message:
                assert key in message, override
                assert len(message) < 1000, override
                continue
            found = getattr(getattr(run, section), key)
            if isinstance(found, int | float):
                assert abs(found) <= (2**63 if "seed" in key else 1e30), override
            run.to_yaml()


PIECES = ["&a", "*a", "<<: ", "[", "]", "{", "}", "---\n", "\t", "\x00", "\ufeff", "!!set ", "? ", ": ", "- ", "'",
          "%YAML 1.1\n", '"', "|\n", ">\n", "\n", "  ", "#", "\\", "1e999", "9" * 400, "null", "\ud7ff", "\x85", ",",
          "@", "`"]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_written_there_a_config_is_read_or_refused_with_its_place(config, seed):
    """Packaged configs with pieces of YAML strewn in: no traceback, no hang."""
    rng = random.Random(seed)
    texts = [find_config(name).read_text() for name in packaged_configs()]
    refused = 0
    for _ in range(60):
        text = rng.choice(texts)
        for _ in range(rng.randint(1, 4)):
            place = rng.randint(0, len(text))
            text = text[:place] + rng.choice(PIECES) * rng.choice([1, 1, 1, 50]) + text[place + rng.choice([0, 0, 5]) :]
        message = "my.yaml"
        try:
            config(text)
        except ConfigError as error:
            refused, message = refused + 1, str(error)
        assert message.startswith("my.yaml"), text
    assert 20 < refused < 60


def test_help_describes_every_key():
    text = describe_keys()
    for schema, section in ((SamplerSettings, "sampler"), (ExecutionSettings, "execution"), (TargetOptions, "model")):
        for key, field in schema.model_fields.items():
            assert f"{section}.{key}  (" in text
            assert (field.description or "")[:40] in text
    assert "output.summary_rows  (an integer of at least 1 and at most 1,000,000; default 12)" in text


@pytest.mark.parametrize(
    ("overrides", "size", "expected"),
    [
        ((), None, (None, "auto")),
        ((), 10**9 - 1, ("my.nc", "netcdf")),
        ((), 10**9, ("my.zarr", "zarr")),
        (("output.path=draws",), 10**9, ("draws", "zarr")),
        (("output.path=x.nc",), None, ("x.nc", "netcdf")),
        (("output.path=x.ZARR",), None, ("x.ZARR", "zarr")),
        (("output.format=zarr",), None, ("my.zarr", "zarr")),
        (("output.path=s3://runs/a",), None, ("s3://runs/a", "zarr")),
        (("output.path=file:///runs/a.nc",), None, ("file:///runs/a.nc", "netcdf")),
        (("output.format=netcdf",), 10**10, ("my.nc", "netcdf")),
    ],
)
def test_the_format_follows_from_the_path_or_from_the_size(config, overrides, size, expected):
    """Settings first, then what the path ends in; a config that has its format written out means the same again."""
    decided = config(GAUSS, *overrides).decided(size)
    assert (decided.output.path, decided.output.format) == expected
    assert decided.decided(0 if size else None) == decided
    if size == 10**9:
        assert config(GAUSS).decided(size, zarr=False).output.format == "netcdf"
