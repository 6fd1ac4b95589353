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
    return html`<section class="shell-broken" role="alert">
      <h1>This view broke</h1>
      <p>${String(error)}</p>
      <div class="shell-buttons">
        <button class="primary" onClick=${() => location.reload()}>Reload the page</button>
        <button onClick=${() => this.setState({ error: null })}>Show the view again</button>
      </div>
      <details>
        <summary>Where</summary>
        <pre>${error?.stack}</pre>
      </details>
    </section>`;
  }
}
