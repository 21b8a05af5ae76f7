"""Gradio's theme variables in the page's own colours. Fonts come from the reader's system: nothing is fetched."""

import gradio as gr

SHADES = "#effcf9 #d5f5ee #ade9dd #7ad8c8 #3fbfac #149c8a #0b7d70 #0b645b #0d5049 #0f423d #04302c"  # 50 to 950
SANS = ("Inter", "system-ui", "-apple-system", "Segoe UI", "Noto Sans", "sans-serif")
MONO = ("ui-monospace", "SF Mono", "Cascadia Code", "DejaVu Sans Mono", "monospace")


def theme() -> gr.themes.Base:
    accent = gr.themes.Color(*SHADES.split())
    return gr.themes.Base(
        primary_hue=accent,
        secondary_hue=accent,
        neutral_hue=gr.themes.colors.zinc,
        font=[gr.themes.Font(name) for name in SANS],
        font_mono=[gr.themes.Font(name) for name in MONO],
    ).set(
        body_background_fill="#fbfbfa",
        body_background_fill_dark="#131314",
        background_fill_primary="#ffffff",
        background_fill_primary_dark="#1c1c1e",
        background_fill_secondary="#f4f4f2",
        background_fill_secondary_dark="#1c1c1e",
        body_text_color="#1d1d1f",
        body_text_color_dark="#e9e9ea",
        body_text_color_subdued="#63636b",
        body_text_color_subdued_dark="#a0a0a8",
        border_color_primary="#e4e4e1",
        border_color_primary_dark="#323236",
        block_radius="12px",
        input_radius="10px",
        button_large_radius="10px",
        button_small_radius="8px",
    )
