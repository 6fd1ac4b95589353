/** Shows what broke in a view, in place of the view. */

import { Component, html } from "../lib/html.js";

export class Boundary extends Component {
  static getDerivedStateFromError(error) {
    return { error };
  }

  componentDidCatch(error) {
    console.error(error);
  }

  render({ children }, { error }) {
    if (!error) return children;
    return html`<section class="panel" role="alert">
      <h1>This view broke</h1>
      <pre>${error?.stack ?? String(error)}</pre>
      <button class="primary" onClick=${() => this.setState({ error: null })}>Show it again</button>
    </section>`;
  }
}
