// The script of the component "feed", which brings the side list: hands it on to the page's script, and that one's wishes
// back to the server.
watch("value", () => document.dispatchEvent(new CustomEvent("streaming-list", { detail: props.value })));
document.addEventListener("streaming-ask", ({ detail: [event, asked] }) => trigger(event, asked));
