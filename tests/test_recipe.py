"""Recipes: frozen, complete, refused by the field's name, and equal after a trip through TOML."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.recipe import NAMED, Recipe, diff, parse_override, recipe


@pytest.mark.parametrize("name", NAMED)
def test_named_recipes_survive_a_round_trip_through_toml(name, tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(recipe(name).to_toml())
    assert recipe(file) == recipe(name)


@given(steps=st.integers(1, 10**6), micro=st.integers(1, 512), lr=st.none() | st.floats(1e-6, 1.0),
       clip=st.floats(0, 100), bucket=st.none() | st.floats(0.5, 1000), use=st.sampled_from(["vla", "own.py:Mine"]))
def test_any_recipe_survives_a_round_trip_through_toml(tmp_path_factory, steps, micro, lr, clip, bucket, use):
    job = recipe("competent", **{"steps": steps, "batch.micro": micro, "optimizer.lr": lr, "optimizer.clip_norm": clip,
                                 "ddp.bucket_mb": bucket, "workload.use": use})
    file = tmp_path_factory.mktemp("recipe") / "job.toml"
    file.write_text(job.to_toml())
    assert recipe(file) == job


def test_overrides_are_dotted_and_typed():
    job = recipe("as_found", "ddp.bucket_mb=100", "workload.size=small", "data.augment=false", "data.workers=none",
                 steps=3)
    assert (job.ddp.bucket_mb, job.workload.size, job.data.augment, job.data.workers, job.steps) == (
        100.0, "small", False, None, 3)
    assert recipe("as_found").ddp.bucket_mb is None


def test_a_recipe_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        recipe().steps = 3


@pytest.mark.parametrize(("override", "sentence"), [
    ("ddp.buckt_mb=3", "recipe field 'ddp.buckt_mb' does not exist; did you mean 'bucket_mb'?"),
    ("stepz=3", "recipe field 'stepz' does not exist; did you mean 'steps'?"),
    ("seed.x=3", "recipe field 'seed.x' does not exist; 'seed' is a value, not a section."),
    ("steps=0", "recipe field 'steps' = 0: input should be greater than or equal to 1."),
    ("data.shuffle=globul", "recipe field 'data.shuffle' = 'globul': input should be 'global', 'block' or 'none'."),
    ("steps", "'steps' is no override: write field=value, for example ddp.bucket_mb=100"),
])
def test_a_mistake_is_one_sentence_that_names_the_field(override, sentence):
    with pytest.raises(LfError) as error:
        recipe("competent", override)
    assert str(error.value) == sentence


@pytest.mark.parametrize(("overrides", "named"), [
    (["ddp.bucket_mb=100", "ddp.bucket_list_mb=[4, 100]"], ["ddp.bucket_mb", "ddp.bucket_list_mb"]),
    (["ddp.freeze_unused=true", "ddp.find_unused=true"], ["ddp.freeze_unused", "ddp.find_unused"]),
    (["ddp.static_graph=true", "ddp.find_unused=true"], ["ddp.static_graph", "ddp.find_unused"]),
    (["data.pin=false"], ["data.async_copy", "data.pin"]),
    (["workload.tune_language=true", "workload.tune_top_layers=2"],
     ["workload.tune_language", "workload.tune_top_layers"]),
    (["precision.mode=fp16", "device=cpu"], ["precision.mode", "device"]),
])
def test_contradictions_are_refused_by_name(overrides, named):
    with pytest.raises(LfError) as error:
        recipe("competent", *overrides)
    assert all(name in str(error.value) for name in named)


def test_a_section_given_as_a_mapping_keeps_its_other_fields():
    assert diff(recipe("full"), recipe("full", ddp={"bucket_mb": 50.0})) == {"ddp.bucket_mb": (100.0, 50.0)}
    options = recipe("competent", workload={"options": {"a": 1}})
    assert options.with_(**{"workload.options": {"b": 2}}).workload.options == {"b": 2}, "a field's value is replaced"
    with pytest.raises(LfError, match=r"'ddp\.bucket' does not exist; did you mean"):
        recipe("full", ddp={"bucket": 50.0})


def test_unknown_names_and_files_say_what_is_known(tmp_path):
    with pytest.raises(LfError, match="did you mean 'competent'"):
        recipe("competant")
    with pytest.raises(LfError, match="can't be read"):
        recipe(tmp_path / "absent.toml")
    (tmp_path / "broken.toml").write_text("steps = = 3")
    with pytest.raises(LfError, match="is no TOML"):
        recipe(tmp_path / "broken.toml")


def test_diff_names_exactly_the_fields_that_differ():
    assert diff(recipe("competent"), recipe("competent", "batch.micro=8")) == {"batch.micro": (16, 8)}
    assert diff(recipe("as_found"), recipe("as_found")) == {}
    assert set(diff(recipe("competent"), recipe("as_found"))) == set(NAMED["as_found"])


def test_none_is_no_value_where_a_field_allows_that_and_a_word_elsewhere():
    job = recipe("full", "ddp.bucket_mb=none", "optimizer.lr = none", "compile.scope=none", "data.shuffle=none")
    assert (job.ddp.bucket_mb, job.optimizer.lr, job.compile.scope, job.data.shuffle) == (None, None, "none", "none")


def test_values_that_are_no_toml_are_strings():
    assert parse_override("workload.use=a/b.py:Mine") == ("workload.use", "a/b.py:Mine")
    assert parse_override("optimizer.lr=1e-4") == ("optimizer.lr", 1e-4)


def test_every_field_is_documented():
    def undocumented(model, prefix=""):
        for name, field in model.model_fields.items():
            if hasattr(field.annotation, "model_fields"):
                yield from undocumented(field.annotation, f"{prefix}{name}.")
            elif not field.description:
                yield prefix + name
    assert list(undocumented(Recipe)) == []
