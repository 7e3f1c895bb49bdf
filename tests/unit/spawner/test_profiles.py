"""KubeSpawner's profiles as environments, and their options."""

from typing import Any

import pytest

from gpuspawner.errors import InvalidInput
from gpuspawner.share import GPUShare
from gpuspawner.spawner import form, profiles
from gpuspawner.spawner.options import Choice

PROFILES: list[dict[str, Any]] = [
    {"slug": "plain", "display_name": "Plain"},
    {
        "slug": "science_2",
        "display_name": "Science",
        "description": "With <everything>",
        "default": True,
        "profile_options": {
            "image": {
                "display_name": "Image",
                "choices": {
                    "new": {"display_name": "New", "default": True},
                    "old": {"display_name": "Old"},
                },
                "unlisted_choice": {"enabled": True, "display_name": "Another", "validation_regex": "[a-z/]+:[0-9]+"},
            },
            "memory": {"choices": {"small": {"display_name": "Small", "default": True}}, "unlisted_choice": {}},
        },
    },
]


def test_profiles_are_environments_the_default_first() -> None:
    first, second = profiles.environments(PROFILES)
    assert (first.name, first.title, first.description) == ("science_2", "Science", "With <everything>")
    assert second.name == "plain"
    image, memory = first.options
    assert (image.field, image.choices, image.default) == (
        "profile-option-science_2--image",
        (("new", "New"), ("old", "Old")),
        "new",
    )
    assert (image.free, memory.free) == ("Another", None)


def test_the_form_shows_the_options_and_what_was_chosen_before() -> None:
    chosen = Choice(environment="science_2", extra=(("image", "old"),))
    html = form.render({"offers": []}, chosen, environments=profiles.environments(PROFILES))
    assert '<option value="old" selected>Old</option>' in html
    assert 'name="profile-option-science_2--image--unlisted-choice"' in html
    assert "With &lt;everything&gt;" in html


def test_what_the_form_sends_is_what_kubespawner_reads() -> None:
    posted = {
        "share": ["h100-80gb:1/4"],
        "environment": ["science_2"],
        "profile-option-science_2--image": ["old"],
        "profile-option-science_2--image--unlisted-choice": [""],
        "profile-option-plain--image": ["new"],
        "_xsrf": ["x"],
    }
    options = profiles.from_form(posted)
    assert options == {"share": "1/4", "model": "h100-80gb", "environment": "science_2", "image": "old"}
    choice = profiles.read_choice(options, PROFILES)
    assert choice == Choice(GPUShare(2, "h100-80gb"), "science_2", extra=(("image", "old"),))
    stored = profiles.stored(choice, PROFILES)
    assert stored == {"share": "1/4", "model": "h100-80gb", "profile": "science_2", "image": "old"}
    assert profiles.read_choice(stored, PROFILES) == choice
    assert profiles.recalled({**choice.options, **dict(choice.extra)}) == choice


def test_nothing_chosen_is_the_default_of_everything() -> None:
    assert profiles.read_choice({}, PROFILES) == Choice()
    assert profiles.read_choice({}, []) == Choice()
    assert profiles.read_choice({"image": "old"}, PROFILES).extra == (("image", "old"),)


@pytest.mark.parametrize(
    ("options", "field", "said"),
    [
        ({"profile": "gone"}, "environment", "plain, science_2"),
        ({"environment": "plain", "profile": "science_2"}, "profile", "plain"),
        ({"environment": "plain", "image": "old"}, "image", "unknown key"),
        ({"image": "newest"}, "image", "new, old"),
        ({"image": 3}, "image", "one line"),
        ({"image--unlisted-choice": "a/b:1; rm"}, "image--unlisted-choice", "matches"),
        ({"memory--unlisted-choice": "large"}, "memory--unlisted-choice", "small"),
        ({"share": "1/3"}, "share", "1/8"),
        ({"colour": "red"}, "colour", "unknown key"),
        ("all of it", "user_options", "an object"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(options: Any, field: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as refused:
        profiles.read_choice(options, PROFILES)
    assert refused.value.field == field


def test_without_profiles_there_is_nothing_to_choose_from() -> None:
    with pytest.raises(InvalidInput, match="no environments"):
        profiles.read_choice({"profile": "plain"}, [])
    with pytest.raises(InvalidInput, match="unknown key"):
        profiles.read_choice({"image": "old"}, [])


def test_a_text_of_ones_own_is_matched_whole() -> None:
    given = {"image--unlisted-choice": "my/image:12"}
    assert dict(profiles.read_choice(given, PROFILES).extra) == given
