//! nginx's configuration language: lexer, tree, directive table, inheritance.
