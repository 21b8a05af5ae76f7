// A quiet ground under what accepted guesses have brought. It is painted over ranges of the text, and nothing is put into
// the page for it: what is shown, and what is copied, stays as it is. Of an answer's source some characters are not to be
// seen (the marks of Markdown, a link's address), but the words are in the same order: each is looked for in the source
// behind the one before it.

const UNSEEN = 10_000;  // characters of the source that may lie between two words
const APART = ".katex, .tentative, button";  // texts that are not the answer's
const grounds = globalThis.Highlight ? { history: new Highlight(), live: new Highlight() } : {};  // none in old browsers
for (const [part, ground] of Object.entries(grounds)) CSS.highlights.set(`guessed-${part}`, ground);

// The server counts characters, the browser units of UTF-16.
function inUnits(text, spans) {
  if (!/[\ud800-\udfff]/.test(text)) return spans;
  const starts = [];
  let unit = 0;
  for (const character of text) { starts.push(unit); unit += character.length; }
  starts.push(unit);
  return spans.map(([start, end]) => [starts[start], starts[end]]);
}

function guessedRanges(message, { text, guessed }) {
  const spans = inUnits(text, guessed), found = [];
  const isText = (node) => (node.parentElement.closest(APART) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
  const texts = document.createTreeWalker(message, NodeFilter.SHOW_TEXT, isText);
  let seen = 0, at = 0;
  while (texts.nextNode()) {
    const node = texts.currentNode;
    for (const { 0: word, index } of node.data.matchAll(/\S+/g)) {
      const ahead = text.slice(seen, seen + UNSEEN).indexOf(word);
      if (ahead < 0) continue;
      const start = seen + ahead, shift = index - start;
      seen = start + word.length;
      while (at < spans.length && spans[at][1] <= start) at++;
      for (let span = at; span < spans.length && spans[span][0] < seen; span++) {
        const from = Math.max(start, spans[span][0]) + shift, to = Math.min(seen, spans[span][1]) + shift;
        const last = found.at(-1);
        if (last?.node === node && last.span === span) last.to = to;  // and the space between two words
        else found.push({ node, span, from, to });
      }
    }
  }
  return found.map(({ node, from, to }) =>
    new StaticRange({ startContainer: node, startOffset: from, endContainer: node, endOffset: to }));
}

function paint(part, messages, sources) {
  grounds[part].clear();
  if (messages.length > sources.length) return;
  messages.forEach((message, place) => {
    if (!sources[place].guessed) return;
    for (const shown of $$(".message-content", message))  // none in a thought that is folded
      for (const range of guessedRanges(shown, sources[place])) grounds[part].add(range);
  });
}
