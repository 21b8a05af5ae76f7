// The script of the component "notes": what the server has to say once.
watch("value", () => document.dispatchEvent(new CustomEvent("streaming-note", { detail: props.value })));
