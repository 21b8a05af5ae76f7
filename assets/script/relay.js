// The script of a component without looks: hands its values on to the page's script, as "streaming-<its id>", and that
// one's wishes, "streaming-ask-<its id>" with [event, asked], back to the server.
const relayed = element.closest("#feed, #notes, #engine, #replies").id;
watch("value", () => document.dispatchEvent(new CustomEvent(`streaming-${relayed}`, { detail: props.value })));
document.addEventListener(`streaming-ask-${relayed}`, ({ detail: [event, asked] }) => trigger(event, asked));
