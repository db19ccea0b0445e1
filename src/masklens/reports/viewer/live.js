// The page of `masklens serve`: a box to type into, jobs with progress, the history in the list.

// What the user chose is kept over a reload, for each title, which names the model.
const chosenBefore = JSON.parse(remembered.get(`run ${data.title}`) ?? "{}");
const runnable = (names) => names.filter((name) => data.live.methods.some((m) => m.name === name));

const live = {
  chosen: new Set(runnable(chosenBefore.methods ?? [])),
  everySite: chosenBefore.everySite ?? false,
  second: data.live.pair,
  drafts: ["", ""],
  target: "",
  jobs: new Map(),
  more: false,
  error: "",
};
if (!live.chosen.size) for (const m of data.live.methods) if (m.chosen) live.chosen.add(m.name);
if (!live.chosen.size) live.chosen.add(data.live.methods[0].name);
const FIRST_METHODS = 7;
SORTS.newest = ["newest", (a, b) => b - a];
state.sort = "newest";

const keepChoices = () =>
  remembered.set(
    `run ${data.title}`,
    JSON.stringify({ methods: [...live.chosen], everySite: live.everySite }),
  );

async function ask(method, path, body) {
  const answer = await fetch(path, {
    method,
    headers: body ? { "Content-Type": "application/json" } : {},
    body: body ? JSON.stringify(body) : undefined,
    keepalive: method === "DELETE", // what was removed stays removed if the page is left at once
  });
  const said = answer.headers.get("content-type")?.includes("json")
    ? await answer.json()
    : { error: await answer.text() };
  if (!answer.ok) throw new Error(said.error || `the server answered ${answer.status}`);
  return said;
}

function composer() {
  const form = el(
    "form",
    { class: "composer card", "aria-label": "New text" },
    ...textBoxes(),
    methodPills(),
    composerRow(),
    el("div", { class: "jobs", role: "status", "aria-live": "polite" }),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submitJob();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submitJob();
  });
  queueMicrotask(drawJobs);
  return form;
}

function textBoxes() {
  if (chat.answer && chat.asChat) return turnBoxes();
  const names = live.second ? data.segments : [chat.answer ? "Prompt" : "Text"];
  return names.map((name, i) => {
    const box = el("textarea", {
      rows: i ? 4 : 2,
      maxlength: data.live.longest,
      "aria-label": name,
      placeholder: live.second
        ? name
        : chat.answer
          ? "Type a prompt, and see what the answer rests on"
          : "Type a text, and see what its prediction rests on",
      dir: "auto",
      spellcheck: "false",
    });
    box.value = live.drafts[i];
    box.addEventListener("input", () => {
      live.drafts[i] = box.value;
    });
    return box;
  });
}

function methodPills() {
  const shown = data.live.methods.filter((m, i) => live.more || i < FIRST_METHODS || live.chosen.has(m.name));
  const pills = shown.map((m) =>
    el("button", {
      type: "button",
      class: "pill",
      text: m.name,
      title: `${m.summary}. Forward passes: ${m.cost}`,
      "aria-pressed": String(live.chosen.has(m.name)),
      on: {
        click: () => {
          if (!live.chosen.delete(m.name)) live.chosen.add(m.name);
          keepChoices();
          redrawComposer();
        },
      },
    }),
  );
  const rest = data.live.methods.length - shown.length;
  if (rest > 0)
    pills.push(
      el("button", {
        type: "button",
        class: "pill more",
        text: `${rest} more`,
        on: {
          click: () => {
            live.more = true;
            redrawComposer();
          },
        },
      }),
    );
  return el(
    "div",
    { class: "pills", role: "group", "aria-label": "Methods to run" },
    el("span", { class: "soft", text: "run" }),
    ...pills,
  );
}

function composerRow() {
  const pairButton = data.live.pair || data.live.answers
    ? null
    : el("button", {
        type: "button",
        class: "more",
        text: live.second ? "one text" : "add a second text",
        title: "For models that take a pair of texts, such as a premise and a hypothesis",
        on: {
          click: () => {
            live.second = !live.second;
            redrawComposer();
          },
        },
      });
  const every = el("button", {
    type: "button",
    class: "pill",
    text: "every layer",
    "aria-pressed": String(live.everySite),
    title: "Scores at every site of the model, not only at the words",
    on: {
      click: () => {
        live.everySite = !live.everySite;
        keepChoices();
        redrawComposer();
      },
    },
  });
  return el(
    "div",
    { class: "composer-row" },
    data.live.answers ? chatPill("answer", "answer", "Let the model answer; or else the next token is explained") : null,
    ...(chat.answer ? answerTools() : [targetBox()]),
    every,
    pairButton,
    el("button", { class: "button primary", type: "submit", text: "Explain", title: "Ctrl + Enter" }),
  );
}

function targetBox() {
  const labels = data.live.labels;
  const box = labels.length
    ? el(
        "select",
        { "aria-label": "Target" },
        el("option", { value: "", text: "target: the prediction" }),
        ...labels.map((name) => el("option", { value: name, text: `target: ${name}` })),
      )
    : el("input", {
        type: "text",
        class: "target",
        placeholder: "target: the prediction",
        "aria-label": "Target",
      });
  box.value = live.target;
  box.addEventListener("change", () => {
    live.target = box.value;
  });
  return box;
}

function redrawComposer() {
  const old = $(".composer"),
    active = document.activeElement?.textContent;
  old?.replaceWith(composer());
  $$(".composer button")
    .find((button) => button.textContent === active)
    ?.focus();
}

async function submitJob() {
  const texts = live.drafts.slice(0, live.second ? 2 : 1),
    textBody = { text: live.second ? texts : texts[0], target: live.target || null };
  live.error = "";
  try {
    if (!live.chosen.size) throw new Error("choose a method");
    const job = await ask("POST", "jobs", {
      ...(chat.answer ? answerBody() : textBody),
      methods: data.live.methods.map((m) => m.name).filter((name) => live.chosen.has(name)),
      every_site: live.everySite,
    });
    live.jobs.set(job.id, job);
    follow(job.id);
  } catch (error) {
    live.error = error.message;
  }
  drawJobs();
}

async function follow(id) {
  for (;;) {
    await new Promise((wake) => setTimeout(wake, 250));
    let now;
    try {
      now = await ask("GET", `jobs/${id}`);
    } catch (error) {
      live.jobs.delete(id);
      live.error = error.message;
      break;
    }
    live.jobs.set(id, { ...live.jobs.get(id), ...now });
    if (["done", "failed", "cancelled"].includes(now.state)) {
      ended(now);
      break;
    }
    drawJobs();
  }
  drawJobs();
}

function ended(job) {
  live.jobs.delete(job.id);
  if (job.problems.length) live.error = job.problems.join("; ");
  if (!job.result) return;
  data.texts = joined([...data.texts, job.result]);
  fillPanel();
  const index = data.texts.findIndex((text) => text.job === job.id || text.jobs?.includes(job.id)),
    text = data.texts[index];
  goToText(index);
  if (text.job !== job.id) set({ target: job.result.maps[0].target });
  else if (originalOf(text)) set({ compare: true });
}

async function forget(index) {
  const [gone] = data.texts.splice(index, 1);
  for (const job of [gone.job, ...(gone.jobs ?? [])]) ask("DELETE", `jobs/${job}`).catch(() => {});
  state.text = Math.max(0, index - 1);
  fillPanel();
  set({ picked: [] });
}

function drawJobs() {
  const rows = [...live.jobs.values()].map((job) => {
    const share = job.state === "running" ? (job.done + 0.2) / job.total : 0;
    const said =
      job.state === "queued"
        ? job.before
          ? `waiting behind ${plural(job.before, "job")}`
          : "waiting"
        : `${job.now ?? "ending"} · ${job.done} of ${plural(job.total, "method")} · forward pass ${job.passes}`;
    return el(
      "div",
      { class: "job" },
      el("span", { class: "job-text", dir: "auto", text: job.text ?? "" }),
      el("progress", { max: 1, value: share, "aria-label": said }),
      el("span", { class: "soft", text: said }),
      el("button", {
        type: "button",
        class: "button cancel",
        text: "Cancel",
        on: { click: () => ask("DELETE", `jobs/${job.id}`).catch(() => {}) },
      }),
    );
  });
  if (live.error) rows.push(el("p", { class: "problem", role: "alert", text: live.error }));
  $(".jobs")?.replaceChildren(...rows);
}

const liveTools = () => [
  el(
    "a",
    {
      class: "button small",
      href: "report.html",
      download: "report.html",
      title: "All of the history as one file",
    },
    "Report",
  ),
  el(
    "a",
    {
      class: "button small",
      href: "attributions.json",
      download: "attributions.json",
      title: "All of the history as data",
    },
    "JSON",
  ),
  ...(data.live.answers
    ? [
        el(
          "a",
          { class: "button small", href: "answers.json", download: "answers.json", title: "All answers as data" },
          "Answers",
        ),
      ]
    : []),
];

function startLive() {
  for (const job of data.live.waiting) {
    live.jobs.set(job.id, job);
    follow(job.id);
  }
  drawJobs();
  if (data.texts.length && !location.hash) goToText(data.texts.length - 1);
  $(".composer textarea")?.focus();
}
