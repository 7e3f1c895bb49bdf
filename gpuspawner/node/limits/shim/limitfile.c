typedef int not_empty;
