// The page of `masklens serve` with a language model: a prompt, or the turns of a chat, to be answered.

const chat = {
  answer: data.live.answers, // or else the next token of a text is explained
  asChat: data.live.roles.length > 0,
  turns: [{ role: "user", content: "" }],
  tokens: 16,
};

// The boxes of a chat, one a turn, each with its role.
function turnBoxes() {
  return chat.turns.map((turn, i) => {
    const role = el(
      "select",
      { "aria-label": `Role of turn ${i + 1}` },
      ...data.live.roles.map((name) => el("option", { value: name, text: name })),
    );
    role.value = turn.role;
    role.addEventListener("change", () => (turn.role = role.value));
    const box = el("textarea", {
      rows: 2,
      maxlength: data.live.longest,
      "aria-label": `Turn ${i + 1}`,
      placeholder: "Write to the model, and see what its answer rests on",
      dir: "auto",
      spellcheck: "false",
    });
    box.value = turn.content;
    box.addEventListener("input", () => (turn.content = box.value));
    const remove = iconButton("cross", `Remove turn ${i + 1}`, () => changeTurns((turns) => turns.splice(i, 1)));
    return el("div", { class: "turn" }, role, box, chat.turns.length > 1 ? remove : null);
  });
}

function changeTurns(change) {
  change(chat.turns);
  redrawComposer();
}

// A user writes after an assistant and the other way round.
const addTurn = () =>
  changeTurns((turns) => {
    const before = turns[turns.length - 1].role;
    turns.push({ role: before === "user" ? "assistant" : "user", content: "" });
  });

const chatPill = (text, name, title) =>
  el("button", {
    type: "button",
    class: "pill",
    text,
    title,
    "aria-pressed": String(chat[name]),
    on: {
      click: () => {
        chat[name] = !chat[name];
        redrawComposer();
      },
    },
  });

// What can be chosen about the answer.
function answerTools() {
  const length = el("input", {
    type: "number",
    class: "target length",
    min: 1,
    max: data.live.most_new_tokens,
    "aria-label": "Tokens of the answer, at most",
    title: "Tokens of the answer, at most",
  });
  length.value = chat.tokens;
  length.addEventListener("input", () => (chat.tokens = Number(length.value)));
  return [
    data.live.roles.length ? chatPill("chat", "asChat", "The model's chat template is filled with the turns") : null,
    chat.asChat ? el("button", { type: "button", class: "pill", text: "add a turn", on: { click: addTurn } }) : null,
    el("label", { class: "soft length-label" }, "tokens ", length),
  ];
}

// What a job is asked for.
const answerBody = () => ({
  ...(chat.asChat ? { messages: chat.turns } : { text: live.drafts[0] }),
  new_tokens: chat.tokens,
});
