"""The one colour of each role, and of waiting, in every picture of a trace."""

# Okabe and Ito's colours: told apart with any colour vision, on white and on black. Waiting is a veil over either.
PALETTE = {
    "mover": "#E69F00",
    "builder": "#0072B2",
    "reducer": "#009E73",
    "router": "#CC79A7",
    "pusher": "#D55E00",
    "folder": "#56B4E9",
    "wait": "#80808099",
}
