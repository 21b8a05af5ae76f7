"""The drawer: system prompt, sampling, thinking, strategy, and presets, built in and the visitor's own.

An empty field leaves the choice to the model. Own presets live in the visitor's browser.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import gradio as gr

from streaming.conversation import Settings
from streaming.errors import InvalidRequest
from streaming.messages import Sampling
from streaming.ui import assets, ways

Preset = dict[str, Any]

BUILT_IN: dict[str, Preset] = {
    "Model's own": {},
    "Precise": {"temperature": 0},
    "Balanced": {"temperature": 0.7, "top_p": 0.9},
    "Creative": {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.05},
}
SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens", "seed")
WHOLE_NUMBERS = ("top_k", "max_new_tokens", "seed")
HINTS = {
    "temperature": "0 is greedy",
    "top_p": "0 to 1",
    "top_k": "0 is off",
    "min_p": "0 to 1",
    "repetition_penalty": "1 is off",
    "max_new_tokens": "tokens",
    "seed": "random",
}
LABELS = {"top_p": "Top-p", "top_k": "Top-k", "min_p": "Min-p", "max_new_tokens": "Max new tokens"}


@dataclass(frozen=True, slots=True)
class Drawer:
    """The components of the drawer, in the order in which handlers get and set their values (`fields`)."""

    presets: gr.BrowserState
    preset: gr.Dropdown
    preset_name: gr.Textbox
    save: gr.Button
    delete: gr.Button
    system: gr.Textbox
    numbers: tuple[gr.Textbox, ...]
    stop: gr.Textbox
    thinking: gr.Checkbox
    strategy: gr.Dropdown
    marks: gr.HTML  # a switch of this browser alone: no handler asks for it

    @property
    def fields(self) -> list[Any]:
        return [self.system, *self.numbers, self.stop, self.thinking, self.strategy]


def build_drawer() -> Drawer:
    """Lay out the drawer inside the current Blocks context and wire its presets."""
    presets = gr.BrowserState({}, storage_key="streaming-presets", secret="streaming")
    gr.HTML(assets.read("drawer.html"), js_on_load=None)
    system = gr.Textbox(
        label="System prompt", lines=3, max_lines=10, placeholder="How the model should behave", elem_id="system-prompt"
    )
    thinking = gr.Checkbox(label="Think before answering", value=True, visible=False, elem_id="thinking")
    preset = gr.Dropdown(list(BUILT_IN), value="Model's own", label="Preset", elem_id="preset")
    with gr.Group(elem_id="sampling"):
        numbers = tuple(_number(name) for name in SAMPLING_FIELDS)
    stop = gr.Textbox(
        label="Stop strings", lines=2, max_lines=6, placeholder="One on each line", elem_id="stop-strings"
    )
    strategy = gr.Dropdown(
        [ways.PLAIN],
        value=ways.PLAIN,
        label="Strategy",
        allow_custom_value=True,  # what was chosen in a conversation may be gone; sending says so in words
        visible=False,
        elem_id="strategy",
    )
    marks = gr.HTML(
        assets.read("marks.html"), js_on_load=assets.script("base", "paint", "marks"), visible=False, elem_id="marks"
    )
    with gr.Accordion("Own presets", open=False, elem_id="own-presets"):
        preset_name = gr.Textbox(label="Name", placeholder="My preset", max_length=40, elem_id="preset-name")
        with gr.Row():
            save = gr.Button("Save", size="sm", elem_id="preset-save")
            delete = gr.Button("Delete", size="sm", elem_id="preset-delete")
    drawer = Drawer(presets, preset, preset_name, save, delete, system, numbers, stop, thinking, strategy, marks)
    _wire(drawer)
    return drawer


def _number(name: str) -> gr.Textbox:
    """A text box, since Gradio's Number cannot tell an empty field from a zero."""
    return gr.Textbox(
        label=LABELS.get(name, name.replace("_", " ").capitalize()),
        placeholder=HINTS[name],
        max_lines=1,
        max_length=24,
        elem_id=name.replace("_", "-"),
        min_width=120,
    )


def _wire(drawer: Drawer) -> None:
    values = [*drawer.numbers, drawer.stop]

    def choose(name: str, own: Any) -> list[Any]:
        preset = {**_own(own), **BUILT_IN}.get(name, {})
        return [_shown(preset.get(field)) for field in SAMPLING_FIELDS] + [preset.get("stop", "")]

    def save(name: str, own: Any, *given: Any) -> tuple[Any, ...]:
        name = name.strip()
        if not name or name in BUILT_IN:
            raise gr.Error("Give the preset a name that is not one of the built-in ones.", print_exception=False)
        preset = dict(zip(SAMPLING_FIELDS, given[:-1], strict=True)) | {"stop": given[-1]}
        own = {**_own(own), name: preset}
        return own, gr.Dropdown([*BUILT_IN, *own], value=name), ""

    def delete(name: str, own: Any) -> tuple[Any, ...]:
        if name in BUILT_IN:
            raise gr.Error("Built-in presets stay. Choose one of your own to delete it.", print_exception=False)
        own = {key: value for key, value in _own(own).items() if key != name}
        return own, gr.Dropdown([*BUILT_IN, *own], value="Model's own")

    chosen: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    drawer.preset.input(choose, [drawer.preset, drawer.presets], values, **chosen)
    drawer.save.click(
        save,
        [drawer.preset_name, drawer.presets, *values],
        [drawer.presets, drawer.preset, drawer.preset_name],
        **chosen,
    )
    drawer.delete.click(delete, [drawer.preset, drawer.presets], [drawer.presets, drawer.preset], **chosen)


def _own(value: Any) -> dict[str, Preset]:
    """What the browser kept, as far as it can be understood: it may be old, or made by hand."""
    if not isinstance(value, Mapping):
        return {}
    return {str(name): dict(preset) for name, preset in value.items() if isinstance(preset, Mapping)}


def own_presets(value: Any) -> Any:
    """The preset list with what the browser kept."""
    return gr.Dropdown([*BUILT_IN, *_own(value)])


def read_settings(values: tuple[Any, ...]) -> Settings:
    """The drawer's values as Settings. Raises InvalidRequest in words that name the field."""
    system, *numbers, stop, thinking, strategy = values
    if not all(isinstance(text, str) for text in (system, *numbers, stop, strategy)):
        raise InvalidRequest("The settings must be texts.")
    given = zip(SAMPLING_FIELDS, numbers, strict=True)
    sampling: dict[str, Any] = {name: _read(name, text.strip()) for name, text in given if text.strip()}
    kwargs = {} if thinking else {"enable_thinking": False}
    sampling |= {"stop": tuple(_lines(stop)), "chat_template_kwargs": kwargs, "strategy": ways.named(strategy)}
    return Settings(system, Sampling(**sampling))


def write_settings(settings: Settings) -> list[Any]:
    """The other way round: component values, in the order of `Drawer.fields`."""
    sampling = asdict(settings.sampling)
    thinking = settings.sampling.chat_template_kwargs.get("enable_thinking", True)
    numbers = [_shown(sampling[name]) for name in SAMPLING_FIELDS]
    stop = "\n".join(text.replace("\n", "\\n") for text in settings.sampling.stop)
    return [settings.system, *numbers, stop, thinking, ways.name_of(settings.sampling.strategy)]


def show_settings(settings: Settings) -> list[Any]:
    """`write_settings` for the page: a strategy is to be seen there even if this engine has none, so that it can be
    given up."""
    *others, strategy = write_settings(settings)
    return [*others, strategy if strategy == ways.PLAIN else gr.update(value=strategy, visible=True)]


def _read(name: str, text: str) -> int | float:
    try:
        return int(text) if name in WHOLE_NUMBERS else float(text.replace(",", "."))
    except ValueError:
        kind = "a whole number" if name in WHOLE_NUMBERS else "a number"
        label = LABELS.get(name, name.replace("_", " ").capitalize())
        raise InvalidRequest(f"{label} is {text!r}: it must be {kind}, or empty.", name) from None


def _shown(value: int | float | None) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _lines(text: str) -> list[str]:
    return [line.replace("\\n", "\n") for line in text.split("\n") if line]
