// What the program needs of node, so that no package of types is.
declare const process: { argv: string[] };
