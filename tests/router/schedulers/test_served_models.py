"""Which model a name means, among those that several schedulers serve."""

import logging
from typing import Any

import pytest

from signalbox_contract.errors import InvalidArgument, NotFound, Unavailable
from signalbox_contract.model import Adapter
from signalbox_contract.pooling import PoolingModel, Task
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.schedulers.served_models import (
    ANY,
    CLASSIFYING,
    EMBEDDING,
    GENERATING,
    POOLING,
    ServedModels,
)
from tests.router.fakes import make_model

SQL = Adapter(name="sql", sha256="a1" * 32)
CHAT = make_model(name="chat")


def make_pooling(name: str, task: Task = "embed", **fields: Any) -> ServedModel:
    pooling = PoolingModel(
        task=task,
        num_outputs=4,
        is_bidirectional=True,
        reads_all_tokens=True,
        activation="identity",
    )
    return make_model(name=name, pooling=pooling, tokenizer=CHAT.tokenizer, **fields)


def make_chat(name: str = "chat", **fields: Any) -> ServedModel:
    return make_model(name=name, tokenizer=CHAT.tokenizer, **fields)


VECTORS, RANKS = make_pooling("vectors"), make_pooling("ranks", "classify")


def served(*offered: ServedModel, names: tuple[str, ...] = ()) -> ServedModels:
    models = ServedModels(names)
    models.update(offered)
    return models


def test_a_name_means_its_model_whatever_the_call() -> None:
    models = served(CHAT, VECTORS)
    for tasks in (GENERATING, POOLING, ANY):
        assert models.of("chat", tasks) == CHAT
        assert models.of("vectors", tasks) == VECTORS
    with pytest.raises(NotFound, match="'x' is not served here; 'chat' and 'vectors' are"):
        models.of("x")


def test_a_call_without_a_name_gets_the_only_model_of_its_kind() -> None:
    models = served(CHAT, VECTORS, RANKS)
    assert models.of("", GENERATING) == CHAT
    assert models.of("", EMBEDDING) == VECTORS
    assert models.of("", CLASSIFYING) == RANKS
    for tasks, names in ((POOLING, "'vectors' or 'ranks'"), (ANY, "'chat', 'vectors' or 'ranks'")):
        with pytest.raises(InvalidArgument, match=names) as refused:
            models.of("", tasks)
        assert refused.value.field == "model"
        assert models.only(tasks) is None


def test_a_model_alone_gets_every_call_without_a_name() -> None:
    models = served(VECTORS)
    assert models.of("", GENERATING) == models.of("", ANY) == models.only(GENERATING) == VECTORS


def test_replicas_are_one_model_with_the_longest_window_and_all_adapters() -> None:
    short = make_chat(effective_max_model_len=100, adapters=(SQL,))
    long = make_chat(effective_max_model_len=200)
    models = served(short, VECTORS, long)
    assert models.served == (CHAT, VECTORS)
    assert models.of("sql") is models.of("chat")
    assert (models.of("sql").window, models.adapter("sql")) == (200, SQL)


TYPED = "org/chat:Q8_0"


def test_a_text_of_the_command_line_names_its_model_and_is_not_listed() -> None:
    path = "/m/chat.gguf"  # of a replica
    models = served(make_chat(started_as=(TYPED,)), VECTORS, make_chat(started_as=(path,)))
    for text in (TYPED, path):
        assert (found := models.of(text)) is models.of("chat")
        assert (found.answers_as(text), found.names_of(text)) == ("chat", ("chat",))
    assert models.of("chat").names == ("chat",)
    for other in ("/m/../m/chat.gguf", "m/chat.gguf", "org/chat", "chat:Q8_0"):
        with pytest.raises(NotFound):
            models.of(other)


def test_a_text_that_several_models_were_started_with_names_none() -> None:
    chat, other = make_chat(started_as=(TYPED,)), make_chat("other", started_as=(TYPED, "b"))
    models = served(chat)
    assert models.of(TYPED) == chat
    models.update([chat, other])
    with pytest.raises(NotFound):
        models.of(TYPED)
    assert models.of("b") == other
    models.update([chat], lost=[other])
    with pytest.raises(NotFound):  # the other may come back
        models.of(TYPED)
    with pytest.raises(Unavailable):
        models.of("b")
    models.update([chat])
    assert models.of(TYPED) == chat


def test_a_text_takes_no_name_that_another_model_or_adapter_has() -> None:
    chat = make_chat(started_as=("vectors", "sql", "alias", "own"))
    models = served(chat, make_pooling("vectors", adapters=(SQL,)), names=("chat", "alias"))
    assert models.of("vectors") == models.of("sql") == VECTORS
    assert models.of("alias").names == ("chat", "alias") and models.of("own") == CHAT


def test_the_second_model_of_a_name_waits_for_the_end_of_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = make_chat(dtype="bfloat16", adapters=(SQL,))
    models = served(CHAT)
    for _ in range(3):
        models.update([other, CHAT])
        assert models.served == (CHAT,)
        assert models.of("chat").dtype == "float32"
        with pytest.raises(NotFound):
            models.of("sql")
    refused = "another model of the name 'chat' is not served while the first is: its dtype"
    assert caplog.text.count(refused) == 1
    models.update([other], lost=[CHAT])
    assert models.served == (other,)
    assert models.of("sql", GENERATING) is models.of("") is models.of("chat")
    models.update([other, CHAT])
    assert models.of("chat") == other


def test_an_adapter_and_a_model_of_one_name_are_not_mixed_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with_adapter = make_chat(adapters=(SQL,))
    later = make_chat("sql", max_model_len=64)
    models = served(with_adapter)
    models.update([later, with_adapter])
    assert models.of("sql") == CHAT and models.served == (CHAT,)
    assert "model 'sql' is not served: an adapter of 'chat' has that name" in caplog.text
    together = served(later, with_adapter)
    assert together.of("sql") == later and together.adapter("sql") is None
    assert together.of("chat").adapters == ()
    assert "the adapter 'sql' of model 'chat' is not served: model 'sql'" in caplog.text


def test_the_later_adapter_of_a_name_is_not_served_until_the_first_is_gone() -> None:
    second = make_chat("second", adapters=(SQL,), max_model_len=64)
    models = served(make_chat(adapters=(SQL,)), second)
    assert (models.of("sql"), models.of("second").adapters) == (CHAT, ())
    models.update([CHAT, second])
    assert (models.of("sql"), models.of("second").adapters) == (second, (SQL,))


def test_given_names_are_the_only_models_or_that_of_the_model_among_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert served(CHAT, names=("gpt", "chat")).of("gpt").names == ("chat", "gpt")
    assert served(CHAT, names=("gpt",)).of("gpt") == CHAT
    for lost in ([], [CHAT]):
        models = ServedModels(("gpt", "chat"))
        models.update([VECTORS] if lost else [VECTORS, CHAT], lost)
        assert models.of("vectors").aliases == ()
    assert served(VECTORS, CHAT, names=("gpt", "chat")).of("gpt") == CHAT
    assert not caplog.text
    for names in (("gpt",), ("gpt", "chat", "vectors")):
        models = served(CHAT, VECTORS, names=names)
        with pytest.raises(NotFound):
            models.of("gpt")
    assert "gpt of served_model_name may mean several models" in caplog.text
    assert "served_model_name has the names of 'chat' and 'vectors'" in caplog.text


def test_a_given_name_gives_way_to_a_model_and_to_an_adapter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    models = served(make_chat(adapters=(SQL,)), names=("sql", "vectors", "gpt"))
    assert models.of("vectors").aliases == ("vectors", "gpt")
    models.update([make_chat(adapters=(SQL,)), VECTORS])
    assert models.of("vectors") == VECTORS and models.adapter("sql") == SQL


def test_a_lost_model_is_unavailable_and_no_other_answers_for_it() -> None:
    says = {"chat": "no worker serves"}
    models = ServedModels(absence_of=lambda model: says.get(model.name if model else "", ""))
    models.update([CHAT, VECTORS])
    models.update([VECTORS], lost=[make_chat(adapters=(SQL,))])
    for name in ("chat", "sql", ""):
        with pytest.raises(Unavailable, match="'chat' is not served now: no worker serves") as lost:
            models.of(name, GENERATING)
        assert lost.value.retry_after_s is not None
    assert models.of("", EMBEDDING) == VECTORS and models.served == (VECTORS,)
    assert models.only_name == ""
    with pytest.raises(NotFound):
        models.of("x")
    models.update([], lost=[CHAT, VECTORS])
    with pytest.raises(Unavailable, match="no scheduler answers"):
        models.of("x")
    with pytest.raises(Unavailable):
        models.all()


def test_an_unknown_name_may_be_that_of_a_scheduler_that_has_told_none() -> None:
    models = ServedModels()
    models.update([CHAT], num_silent=1)
    assert models.of("") == models.of("chat") == CHAT
    with pytest.raises(Unavailable, match="1 of the router's schedulers serve no model yet"):
        models.of("vectors")
