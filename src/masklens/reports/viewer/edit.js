// The page of `masklens serve`: another target, and an edit, of a text that is shown.

// Ask for something that is like an earlier job but for `changes`.
async function askLike(text, changes) {
  live.error = "";
  try {
    const job = await ask("POST", "jobs", { like: text.job, ...changes });
    live.jobs.set(job.id, job);
    follow(job.id);
  } catch (error) {
    live.error = error.message;
  }
  drawJobs();
}

const askTarget = (text, name) => askLike(text, { target: name });

// The class that is shown: an edit is explained for the same one, so that scores compare.
const targetOf = (text) => {
  const shown = shownMaps(text)[0]?.target;
  return text.classes?.some(([name]) => name === shown) ? shown : null;
};

// Below the text: boxes with its words to change.
function editForm(text) {
  const boxes = text.text.map((part, i) => {
    const box = el("textarea", {
      rows: part.length > LONG_LINE ? 6 : 2,
      maxlength: data.live.longest,
      "aria-label": text.text.length > 1 ? `Edit the ${data.segments[i]}` : "Edit the text",
      dir: "auto",
      spellcheck: "false",
    });
    box.value = part;
    return box;
  });
  const form = el(
    "form",
    { class: "edit", "aria-label": "Edit and compare" },
    ...boxes,
    el(
      "div",
      { class: "composer-row" },
      el("span", { class: "soft", text: "Change a word, and see what changes." }),
      el("button", { class: "button primary", type: "submit", text: "Compare" }),
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const parts = boxes.map((box) => box.value);
    if (same(parts, text.text)) return boxes[0].focus();
    set({ editing: false });
    askLike(text, { text: parts.length > 1 ? parts : parts[0], target: targetOf(text) });
  });
  return form;
}
