// Who looks, and what this console lets them change.
import { Component, h, read } from "./dom.js";

export const session = { owner: null, changes: false };

const JSON_BODY = { "content-type": "application/json" };
const post = (path, body) =>
  read(path, { method: "POST", headers: JSON_BODY, body: JSON.stringify(body) });

export const order = (name, body) => post(`/api/change/${name}`, body);

// Returns whether this reader may see the deployment.
export async function known() {
  const answer = await fetch("/api/session");
  if (answer.status === 401) return false;
  Object.assign(session, await answer.json());
  return true;
}

// Takes a token: {done}.
export class Login extends Component {
  render({ done }, { error }) {
    const enter = async (event) => {
      event.preventDefault();
      try {
        Object.assign(session, await post("/api/login", { token: event.target.elements.token.value.trim() }));
        done();
      } catch (refused) {
        this.setState({ error: refused.message });
      }
    };
    return h("div", {},
      h("h1", {}, "Log in"),
      h("p", {}, "This console shows its deployment to owners of a token. Tokens are in the file that ", h("code", {}, "console.token_file"), " names."),
      h("form", { onSubmit: enter },
        h("label", {}, "Token ", h("input", { name: "token", id: "token", type: "password", autocomplete: "current-password", required: true })),
        h("button", {}, "Log in")),
      error && h("p", { class: "problem", role: "alert" }, `✕ ${error}`));
  }
}

// A button that changes the deployment, or what to do instead: {id, label, name, body, command, after}.
export class Order extends Component {
  render({ id, label, name, body, command, after }, { sent, error, done }) {
    if (!session.changes) {
      return h("p", { class: "quiet" }, "This console is read-only. In a terminal: ", h("code", {}, command));
    }
    const send = async () => {
      this.setState({ sent: true, error: null });
      try {
        const answer = await order(name, body);
        this.setState({ sent: false, done: true });
        after?.(answer);
      } catch (refused) {
        this.setState({ sent: false, error: refused.message });
      }
    };
    return h("div", { class: "order" },
      h("button", { id, onClick: send, disabled: sent }, sent ? "The planner carries it out…" : label),
      h("span", { role: "status" }, done ? ` ✓ Done, in the name of ${session.owner}.` : ""),
      error && h("p", { class: "problem", role: "alert" }, `✕ ${error}`));
  }
}
