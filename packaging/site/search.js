// Lists the sections that have all words, those with the words in their headings first.
const input = document.getElementById("search"), results = document.getElementById("results");
input.addEventListener("input", () => {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (const s of words.length ? sections : []) {
    const heading = (s.p + " " + s.h).toLowerCase(), text = s.t.toLowerCase();
    if (words.every((w) => heading.includes(w) || text.includes(w))) {
      found.push([words.filter((w) => heading.includes(w)).length, s]);
    }
  }
  found.sort((a, b) => b[0] - a[0]);
  results.replaceChildren(...found.slice(0, 20).map(([, s]) => {
    const link = Object.assign(document.createElement("a"), { href: document.body.dataset.top + s.u });
    link.textContent = s.h && s.h !== s.p ? s.p + " › " + s.h : s.p;
    const at = Math.max(0, s.t.toLowerCase().indexOf(words[0]) - 60);
    const text = Object.assign(document.createElement("p"), { textContent: s.t.slice(at, at + 200) });
    const line = document.createElement("li");
    line.append(link, text);
    return line;
  }));
  if (words.length && !found.length) results.textContent = "Nothing has all these words.";
  results.hidden = !words.length;
});
