"""What the page does to itself while its frames are measured, as scripts for a browser."""

FRAMES = """(duration) => new Promise((done) => {
    const step = ACT;
    const frames = [];
    const began = performance.now();
    let last = null;
    let number = 0;
    const frame = (now) => {
        if (last !== null) frames.push(Math.round((now - last) * 100) / 100);
        last = now;
        if (now - began > duration) { done(frames); return; }
        step((now - began) / duration, number);
        number += 1;
        requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
})"""
"""Times between frames while ACT, a function of (part, number), is called in each of them."""

ACTS = {
    "nothing": "() => {}",
    "scrubbing": """(part) => {
        const slider = document.querySelector(".scrubber input[type=range]");
        slider.value = String(Number(slider.max) * (0.5 + 0.45 * Math.sin(2 * Math.PI * part)));
        slider.dispatchEvent(new Event("input", { bubbles: true }));
    }""",
    "zooming": """(part, number) => {
        if (number === 0) location.hash = "view=run&runs=a";
        if (number % 12 !== 0) return;
        const drawing = document.querySelector("[data-panel=roles] .drawing");
        const key = part < 0.5 ? "+" : "-";
        drawing.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    }""",
    "scrolling": """(part, number) => {
        if (number === 0) location.hash = "view=run&runs=a";
        const whole = document.documentElement.scrollHeight - innerHeight;
        scrollTo(0, whole * (1 - Math.abs(1 - 2 * part)));
    }""",
    "switching views": """(part, number) => {
        if (number % 30 !== 0) return;
        const views = ["view=run&runs=a", "view=executions&runs=a", "view=run&runs=a,b"];
        location.hash = views[(number / 30) % views.length];
    }""",
    "scrolling a tree": """(part) => {
        const sheet = document.querySelector(".tree-window");
        const round = 1 - Math.abs(1 - 2 * part);
        sheet.scrollTo((sheet.scrollWidth - sheet.clientWidth) * round,
            (sheet.scrollHeight - sheet.clientHeight) * round);
    }""",
}

OPENED = {
    "run": """() => document.querySelector(".tiles strong") !== null
        && [...document.querySelectorAll("[data-panel]")].every((one) => {
            const { top } = one.getBoundingClientRect();
            return top > innerHeight || one.querySelector(".panel-body > *") !== null;
        })""",
    "executions": """() => document.querySelector(".executions tbody tr") !== null""",
    "tree": """(place) => new Promise((done) => {
        const began = performance.now();
        location.hash = place;
        const look = () => {
            if (document.querySelector("[role=treeitem]") !== null
                && document.querySelector(".reader .call:not(.waiting)") !== null)
                requestAnimationFrame(() => done(performance.now() - began));
            else requestAnimationFrame(look);
        };
        look();
    })""",
}
"""When a view is there: what is in the window has been drawn."""
