"""Registry of answers by type of message: fedsink's own, and those of packages."""

from __future__ import annotations

from fedsink.clients.answers.base import Answer
from fedsink.clients.answers.dp_sinkhorn import DPSinkhornAnswer
from fedsink.clients.answers.gs_wgan import GSWGANAnswer
from fedsink.clients.answers.privatize_once import PrivatizeOnceAnswer
from fedsink.clients.owner.policy import Policy
from fedsink.errors import ConfigError
from fedsink.registry import Registry

ANSWERS: Registry[type[Answer]] = Registry(
    "answer",
    {cls.name: cls for cls in (DPSinkhornAnswer, GSWGANAnswer, PrivatizeOnceAnswer)},
    group="fedsink.answers",
)
"""Every answer by the end of its message type: ``train.NAME``."""


def find_answer(message_type: str, policy: Policy | None) -> type[Answer]:
    """Returns the class of answers to messages of a type.

    Guarantees:
        Under a policy no installed answer is imported whose name the policy does not hold.
    """
    name = message_type.removeprefix("train.")
    if policy is not None and name not in ANSWERS.own:
        policy.check_mechanism(name)
    answer: object = ANSWERS.find(name)
    if isinstance(answer, type) and issubclass(answer, Answer) and answer.name == name:
        return answer
    raise ConfigError(
        f"The answer {name!r} was installed as {answer!r}, which is no Answer of that name: "
        "correct or uninstall the package that adds it."
    )


def answers_by_word() -> dict[str, str]:
    """Returns every word that a policy can allow, with the name of its answer.

    Nothing is imported: an installed answer or local mechanism is allowed only by its name.
    """
    words: dict[str, str] = {}
    for name in ANSWERS:
        for word in ANSWERS[name].words() if name in ANSWERS.own else (name,):
            if word in words:
                raise ConfigError(
                    f"An installed answer or local mechanism is called {word!r}, which a policy "
                    "allows for something else: uninstall the package that adds it."
                )
            words[word] = name
    return words
